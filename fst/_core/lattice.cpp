#include "lattice.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

namespace fst_core {

namespace {

constexpr std::uint32_t kFlagsPerLabel = 64;   // so few false positives that branch prediction expects none
constexpr std::uint32_t kMaxFlags = 1u << 16;  // the filter stays in cache

std::string spelled(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "+inf" : "-inf";
    char digits[32];
    return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

}  // namespace

void Lattice::assign(const LatticeView& view, const Model* model, const char* name) {
    if (view.slots < 0 || view.k < 1 ||
        view.k > std::numeric_limits<std::int32_t>::max() / 64 / std::max<std::int64_t>(view.slots, 1))
        refuse(name, "expected tokens [slots, k] with k of at least 1 and fewer than 2^25 in all, got [", view.slots,
               ", ", view.k, "]");
    clear(model);
    is_sausage_ = true;
    longest_ = view.slots;
    transitions_ = view.slots > 1 ? view.transitions : nullptr;
    k_ = view.k;
    for (std::int64_t t = 0; t < view.slots; ++t) {
        const std::int32_t* tokens = view.tokens + t * view.k;
        const double* log_probs = view.log_probs + t * view.k;
        order_.clear();
        for (std::int32_t c = 0; c < view.k; ++c) {
            if (tokens[c] == -1) continue;
            if (tokens[c] < -1 || tokens[c] == std::numeric_limits<std::int32_t>::max())
                refuse(name, "slot ", t, ": expected token ids from 0 to 2^31 - 2, or -1 as padding, got ", tokens[c]);
            if (!(log_probs[c] <= kLargestWeight))  // NaN too
                refuse(name, "slot ", t, ": expected log-probabilities of at most 1e30, got ", spelled(log_probs[c]),
                       " for token ", tokens[c]);
            order_.emplace_back(tokens[c], c);
        }
        std::sort(order_.begin(), order_.end());
        Slot slot;
        slot.first = static_cast<std::int32_t>(tokens_.size());
        for (std::size_t i = 0; i < order_.size(); ++i) {
            const auto [token, c] = order_[i];
            if (i > 0 && order_[i - 1].first == token)
                refuse(name, "slot ", t, ": expected distinct tokens, got token ", token,
                       " more than once; keep one column of each");
            if (log_probs[c] <= -kLargestWeight) continue;
            add_column(token, log_probs[c], c, t + 1 < view.slots ? static_cast<std::int32_t>(t + 1) : kEnd);
        }
        end_slot(slot);
        if (slot.size == 0)
            refuse(name, "slot ", t, ": expected at least one token with a log-probability above -1e30, got none");
    }
    if (transitions_ != nullptr) check_transitions(name);
}

void ArcsView::check() const {
    if (slots() < 1 || tokens.size() > Lattice::kMostColumns || log_probs.size() != tokens.size() ||
        targets.size() != tokens.size() || offsets.front() != 0 ||
        offsets.back() != static_cast<std::int64_t>(tokens.size()))
        refuse(
            "expected tokens, log_probs and targets [arcs], fewer than 2^25, and offsets [states + 1] from 0 to "
            "their number");
    for (std::int32_t s = 0; s < slots(); ++s) {
        const std::int64_t first = offsets[s], end = offsets[s + 1];
        if (first > end || end > offsets.back())
            refuse("expected offsets that do not fall, got ", end, " after ", first);
        for (std::int64_t i = first; i < end; ++i) {
            if (tokens[i] < Lattice::kEpsilon || tokens[i] == std::numeric_limits<std::int32_t>::max())
                refuse("expected token ids from 0 to 2^31 - 2, or -1 for epsilon, got ", tokens[i], " at state ", s);
            if (!(std::abs(log_probs[i]) < kLargestWeight))  // NaN too
                refuse("expected log-probabilities between -1e30 and 1e30, got ", spelled(log_probs[i]), " at state ",
                       s);
            if (targets[i] == Lattice::kEnd && tokens[i] == Lattice::kEpsilon) continue;
            if (targets[i] <= s || targets[i] >= slots())
                refuse("expected arcs that lead to higher states below ", slots(), ", got one from ", s, " to ",
                       targets[i]);
        }
    }
}

void Lattice::assign(const ArcsView& view, const Model* model) {
    view.check();
    clear(model);
    is_sausage_ = false;
    transitions_ = nullptr;
    std::vector<std::size_t> depth(view.slots());  // tokens of the longest path to each slot
    longest_ = 0;
    for (std::size_t s = 0; s < depth.size(); ++s) {
        order_.clear();
        for (std::int64_t i = view.offsets[s]; i < view.offsets[s + 1]; ++i)
            order_.emplace_back(view.tokens[i], static_cast<std::int32_t>(i));
        std::sort(order_.begin(), order_.end());
        Slot slot;
        slot.first = static_cast<std::int32_t>(tokens_.size());
        for (std::size_t at = 0; at < order_.size(); ++at) {
            const auto [token, i] = order_[at];
            const std::int32_t target = view.targets[i];
            std::size_t& reached = target == kEnd ? longest_ : depth[target];
            reached = std::max(reached, depth[s] + (token != kEpsilon));
            slot.num_epsilons += token == kEpsilon;
            add_column(token, view.log_probs[i], i, target);
        }
        end_slot(slot);
    }
}

void Lattice::clear(const Model* model) {
    model_ = model;
    slots_.clear();
    tokens_.clear();
    labels_.clear();
    inputs_.clear();
    targets_.clear();
    log_probs_.clear();
    keys_.clear();
    key_bounds_.clear();
    columns_.clear();
    filter_.clear();
    max_columns_ = 0;
}

inline void Lattice::add_column(std::int32_t token, double log_prob, std::int32_t column, std::int32_t target) {
    tokens_.push_back(token);
    log_probs_.push_back(log_prob);
    inputs_.push_back(column);
    targets_.push_back(target);
    labels_.push_back(model_ != nullptr && token != kEpsilon ? model_->label_of(token) : Model::kNoLabel);
}

inline void Lattice::end_slot(Slot& slot) {
    slot.size = static_cast<std::int32_t>(tokens_.size()) - slot.first;
    max_columns_ = std::max(max_columns_, slot.size);
    if (model_ != nullptr) index_labels(slot);
    slots_.push_back(slot);
}

// One quick pass shows that all is well (NaN fails too); values at columns that are left out do not matter.
void Lattice::check_transitions(const char* name) const {
    bool fine = true;
    for (std::int64_t i = 0; i < std::int64_t{slots() - 1} * k_ * k_; ++i)
        fine &= transitions_[i] <= static_cast<float>(kLargestWeight);
    if (fine) return;
    for (std::int32_t t = 1; t < slots(); ++t)
        for (std::int32_t from = slot(t - 1).first; from < slot(t).first; ++from)
            for (std::int32_t to = slot(t).first; to < slot(t).first + slot(t).size; ++to) {
                const float value = transitions_[(std::int64_t{t - 1} * k_ + inputs_[from]) * k_ + inputs_[to]];
                if (!(value <= static_cast<float>(kLargestWeight)))
                    refuse(name, "slot ", t, ": expected transitions of at most 1e30, got ", spelled(value),
                           " from token ", token(from), " to token ", token(to));
            }
}

void Lattice::extend(std::int64_t slots) {
    for (std::int64_t t = 0; t < slots; ++t) {
        Slot slot;
        slot.first = static_cast<std::int32_t>(tokens_.size());
        end_slot(slot);
    }
}

bool Lattice::has_more_paths(std::uint64_t most) const {
    std::vector<std::uint64_t> paths(slots_.size());  // from each slot on, up to most + 1
    for (std::int32_t s = slots(); s-- > 0;)
        for (std::int32_t c = 0; c < slot(s).size; ++c) {
            const std::int32_t target = targets(s)[c];
            std::uint64_t& sum = paths[s];
            sum = std::min(most + 1, sum + (target == kEnd ? 1 : paths[target]));
        }
    return paths.front() > most;
}

bool Lattice::has_more_prefixes(std::uint64_t most) const {
    std::uint64_t paths = 1, prefixes = 0;
    for (const Slot& slot : slots_) {
        paths *= static_cast<std::uint64_t>(slot.size);
        if ((prefixes += paths) > most) return true;
    }
    return false;
}

void Lattice::index_labels(Slot& slot) {
    order_.clear();
    for (std::int32_t c = 0; c < slot.size; ++c)
        if (const std::int32_t label = labels_[slot.first + c]; label != Model::kNoLabel) order_.emplace_back(label, c);
    if (!std::is_sorted(order_.begin(), order_.end()))
        std::sort(order_.begin(), order_.end());  // <unk> breaks the order of tokens

    slot.first_key = static_cast<std::int32_t>(keys_.size());
    for (const auto& [label, c] : order_) {
        if (static_cast<std::int32_t>(keys_.size()) == slot.first_key || keys_.back() != label) {
            keys_.push_back(label);
            key_bounds_.push_back(static_cast<std::int32_t>(columns_.size()));
        }
        columns_.push_back(c);
    }
    slot.num_keys = static_cast<std::int32_t>(keys_.size()) - slot.first_key;
    // The bound that closes the last key is also an entry: it keeps keys_ and key_bounds_ in step.
    keys_.push_back(Model::kNoLabel);
    key_bounds_.push_back(static_cast<std::int32_t>(columns_.size()));

    const std::uint32_t num_flags =
        std::min(kMaxFlags, std::bit_ceil(kFlagsPerLabel * std::max(1u, static_cast<std::uint32_t>(slot.num_keys))));
    slot.filter_mask = num_flags - 1;
    slot.first_flag = static_cast<std::int32_t>(filter_.size());
    filter_.resize(filter_.size() + num_flags, 0);
    if (tables_.size() <= slots_.size()) tables_.resize(2 * slots_.size() + 1);
    HashTable<std::uint32_t>& table = tables_[slots_.size()];
    table.clear(std::bit_ceil(2 * static_cast<std::size_t>(slot.num_keys) + 2));
    for (std::int32_t key = 0; key < slot.num_keys; ++key) {
        const std::int32_t label = keys_[slot.first_key + key];
        filter_[slot.first_flag + (static_cast<std::uint32_t>(label) & slot.filter_mask)] = 1;
        table.insert(static_cast<std::uint32_t>(label), key);
    }
}

}  // namespace fst_core
