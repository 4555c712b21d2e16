#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fst_core {

namespace {

std::uint32_t checked_id(std::int64_t state, std::uint32_t num_states, const char* name) {
    if (state < 0 || state >= std::int64_t{num_states})
        refuse_corrupt("expected ", name, " below ", num_states, ", got ", state);
    return static_cast<std::uint32_t>(state);
}

}  // namespace

void refuse_order(std::uint32_t state) {
    refuse_corrupt("expected the arcs of state ", state, " in rising order of label");
}

void refuse_failures(std::uint32_t state) { refuse_corrupt("more than 255 failure arcs in a row from state ", state); }

Model::Model(std::span<const std::byte> states, std::span<const std::byte> arcs, std::int64_t start,
             std::int64_t unigram_state, std::int64_t unk_label)
    : states_(states.data()), arcs_(arcs.data()), num_arcs_(arcs.size() / sizeof(ArcRecord)) {
    if (states.size() % sizeof(StateRecord) != 0 || arcs.size() % sizeof(ArcRecord) != 0)
        refuse_corrupt("expected states of 20 bytes and arcs of 16, got ", states.size(), " and ", arcs.size(),
                       " bytes");
    const std::size_t count = states.size() / sizeof(StateRecord);
    if (count == 0 || count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
        refuse_corrupt("expected between 1 and 2^31 - 1 states, got ", count);
    num_states_ = static_cast<std::uint32_t>(count);
    start_ = checked_id(start, num_states_, "a start state");
    unigram_state_ = checked_id(unigram_state, num_states_, "a unigram state");

    const float end = state(unigram_state_).final_cost;
    has_end_ = end != 0 && end != std::numeric_limits<float>::infinity();
    const Row unigrams = row(unigram_state_);
    if (unigrams.backs_off) refuse_corrupt("expected no failure arc (label 0) at the unigram state ", unigram_state_);
    unigram_arcs_.reserve(unigrams.num_arcs);
    std::int32_t previous = 0;
    for (std::uint32_t i = 0; i < unigrams.num_arcs; ++i) {
        const ArcRecord arc = unigrams.arc(i);
        if (arc.label <= previous)
            refuse_corrupt("expected the arcs of the unigram state in rising order of label, got ", arc.label,
                           " after ", previous);
        cost(arc.cost);
        checked_state(arc.next_state);
        previous = arc.label;
        unigram_arcs_.push_back(arc);
    }
    if (static_cast<std::uint64_t>(previous) <= 8 * std::uint64_t{unigrams.num_arcs} + 1024) {
        unigram_by_label_.assign(std::size_t{1} + previous, -1);
        for (std::size_t i = 0; i < unigram_arcs_.size(); ++i)
            unigram_by_label_[unigram_arcs_[i].label] = static_cast<std::int32_t>(i);
    }
    label_indexes_.emplace(static_cast<std::uint32_t>(previous) + 1, unigram_arcs_.size());
    if (unk_label != 0 && (unk_label < 0 || unk_label > std::numeric_limits<std::int32_t>::max() ||
                           unigram_index(static_cast<std::int32_t>(unk_label)) < 0))
        refuse_corrupt("expected 0 or a label of the unigram state as unk_label, got ", unk_label);
    unk_label_ = static_cast<std::int32_t>(unk_label);
}

std::ptrdiff_t Model::unigram_index(std::int32_t label) const {
    if (!unigram_by_label_.empty())
        return label >= 0 && static_cast<std::size_t>(label) < unigram_by_label_.size() ? unigram_by_label_[label] : -1;
    const auto arc = std::ranges::lower_bound(unigram_arcs_, label, {}, &ArcRecord::label);
    return arc != unigram_arcs_.end() && arc->label == label ? arc - unigram_arcs_.begin() : -1;
}

std::int32_t Model::label_of(std::int64_t token) const {
    if (token < 0 || token >= std::numeric_limits<std::int32_t>::max()) return unk_label_;
    const auto label = static_cast<std::int32_t>(token + 1);
    return unigram_index(label) >= 0 ? label : unk_label_;
}

Model::Step Model::advance(std::uint32_t state, std::int32_t label) const {
    double total = 0;
    std::int32_t failures = 0;
    for (; state != unigram_state_; ++failures) {
        if (failures == kMaxFailures) refuse_failures(state);
        const Row row = this->row(state);
        std::size_t low = 0, high = label == kNoLabel ? 0 : row.num_arcs;
        while (low < high) {
            const std::size_t middle = low + (high - low) / 2;
            if (row.label(middle) < label) low = middle + 1;
            else high = middle;
        }
        if (label != kNoLabel && low < row.num_arcs && row.label(low) == label) {
            const ArcRecord arc = row.arc(low);
            return {total + cost(arc.cost), checked_state(arc.next_state), failures};
        }
        total += row.backoff_cost;
        state = row.backoff_state;
    }
    if (label == kNoLabel) return {total + kMaxCost, unigram_state_, failures};
    const ArcRecord& arc = unigram_arc(label);
    return {total + cost(arc.cost), static_cast<std::uint32_t>(arc.next_state), failures};
}

std::uint32_t Model::state_of(std::span<const std::int64_t> context) const {
    std::uint32_t state = unigram_state_;
    for (const std::int64_t token : context) state = advance(state, label_of(token)).next_state;
    return state;
}

double Model::log_prob(std::int64_t token, std::span<const std::int64_t> context) const {
    return -advance(state_of(context), label_of(token)).cost;
}

double Model::final_cost(std::uint32_t state) const {
    double total = 0;
    for (int failures = 0;; ++failures) {
        if (failures == kMaxFailures) refuse_failures(state);
        const StateRecord record = this->state(state);
        if (has_end_ && record.final_cost != std::numeric_limits<float>::infinity())
            return total + cost(record.final_cost);
        if (state == unigram_state_) return total + kMaxCost;
        const Row row = this->row(state, record);
        total += row.backoff_cost;
        state = row.backoff_state;
    }
}

double Model::score(std::span<const std::int64_t> tokens, bool bos, bool eos) const {
    double total = 0;
    std::uint32_t state = bos ? start_ : unigram_state_;
    for (const std::int64_t token : tokens) {
        const Step step = advance(state, label_of(token));
        total -= step.cost;
        state = step.next_state;
    }
    return eos ? total - final_cost(state) : total;
}

}  // namespace fst_core
