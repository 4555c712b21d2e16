// A backoff n-gram model as an OpenFst `const` automaton, read in place.
//
// Automaton: a state is a history; an arc (label = token + 1) carries cost = -ln p(token | history) and leads to the
// longest history that is a state. The one arc labelled 0 comes first and is a *failure* arc: it may be taken only
// where the state has no arc for the label, and its cost is -ln(backoff weight). The unigram state has none.
// final = cost of </s>, infinite where the history does not end. In a model without </s> every state is final at cost 0
// (infinite in old files), so that it composes; neither is a probability of </s>.
//
// The buffers come from a file that nobody vouches for, usually memory-mapped and far larger than what a search reads
// of it. So nothing is checked in advance beyond sizes and the unigram state; every offset is checked where it is used.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include <fst/refuse.hpp>

#include "label_index.hpp"

namespace fst_core {

using fst::refuse;

struct StateRecord {  // as on disk
    float final_cost;
    std::uint32_t first_arc, num_arcs, num_input_epsilons, num_output_epsilons;
};
static_assert(sizeof(StateRecord) == 20);

struct ArcRecord {  // as on disk
    std::int32_t label, output_label;
    float cost;
    std::int32_t next_state;
};
static_assert(sizeof(ArcRecord) == 16);

// Throw std::invalid_argument for a file that holds no model.
template <typename... Parts>
[[noreturn]] void refuse_corrupt(Parts... what) {
    refuse("corrupt language model: ", what..., "; write the file again from its source");
}
[[noreturn]] void refuse_order(std::uint32_t state);     // of a state's arcs
[[noreturn]] void refuse_failures(std::uint32_t state);  // too many in a row from a state

// The arcs of one state: the failure arc apart, the others as they lie in the file.
struct Row {
    const std::byte* arcs = nullptr;  // explicit arcs, sorted by label
    std::uint32_t num_arcs = 0;
    bool backs_off = false;
    std::uint32_t backoff_state = 0;
    double backoff_cost = 0;

    // Records of a mapped file need not be aligned, hence the copies; they compile to plain loads.
    std::int32_t label(std::size_t arc) const {
        std::int32_t value;
        std::memcpy(&value, arcs + arc * sizeof(ArcRecord), sizeof value);
        return value;
    }
    ArcRecord arc(std::size_t index) const {
        ArcRecord record;
        std::memcpy(&record, arcs + index * sizeof(ArcRecord), sizeof record);
        return record;
    }
};

class Model {
  public:
    static constexpr double kMaxCost = 1000.0;   // stands for -ln 0: keeps every sum finite
    static constexpr int kMaxFailures = 255;     // a longer chain of failure arcs is taken for a cycle
    static constexpr std::int32_t kNoLabel = 0;  // a token that neither the unigrams nor <unk> provide for

    struct Step {
        double cost;
        std::uint32_t next_state;
        std::int32_t failures;  // how often the history was shortened for it
    };

    // unk_label: label of <unk>; 0 if the model has none: then a token that the unigrams lack costs kMaxCost.
    Model(std::span<const std::byte> states, std::span<const std::byte> arcs, std::int64_t start,
          std::int64_t unigram_state, std::int64_t unk_label);

    std::uint32_t num_states() const { return num_states_; }
    std::uint32_t start() const { return start_; }
    std::uint32_t unigram_state() const { return unigram_state_; }
    std::int32_t unk_label() const { return unk_label_; }
    bool has_end() const { return has_end_; }  // whether the model knows </s>

    void prefetch_state(std::uint32_t state) const {
        if (state < num_states_) __builtin_prefetch(states_ + std::size_t{state} * sizeof(StateRecord));
    }
    StateRecord state(std::uint32_t state) const {
        StateRecord record;
        std::memcpy(&record, states_ + std::size_t{state} * sizeof(StateRecord), sizeof record);
        if (const std::uint64_t end = std::uint64_t{record.first_arc} + record.num_arcs; end > num_arcs_)
            refuse_corrupt("state ", state, " has arcs ", record.first_arc, " to ", end, " of ", num_arcs_);
        return record;
    }
    const std::byte* arcs_at(std::uint32_t first_arc) const {
        return arcs_ + std::size_t{first_arc} * sizeof(ArcRecord);
    }
    Row row(std::uint32_t state) const { return row(state, this->state(state)); }
    Row row(std::uint32_t state, const StateRecord& record) const {
        Row row{arcs_at(record.first_arc), record.num_arcs, false, 0, 0};
        if (row.num_arcs > 0 && row.label(0) == 0) {
            const ArcRecord failure = row.arc(0);
            row.backs_off = true;
            row.backoff_state = checked_state(failure.next_state);
            row.backoff_cost = cost(failure.cost);
            row.arcs += sizeof(ArcRecord);
            --row.num_arcs;
        } else if (state != unigram_state_) {
            refuse_corrupt("expected a failure arc (label 0) as the first arc of state ", state,
                           ", which is not the unigram state");
        }
        return row;
    }
    // Where the row has its labels, or null for a row that is better searched.
    const LabelIndex* label_index(std::uint32_t state, const Row& row) const {
        return label_indexes_->find(state, row);
    }
    std::uint32_t checked_state(std::int32_t next_state) const {
        if (static_cast<std::uint32_t>(next_state) >= num_states_)
            refuse_corrupt("expected a next state below ", num_states_, ", got ", next_state);
        return static_cast<std::uint32_t>(next_state);
    }
    // Finite cost of a weight on disk; NaN is refused.
    static double cost(float weight) {
        if (weight != weight) refuse_corrupt("expected a number as an arc's weight, got NaN");
        return std::clamp(static_cast<double>(weight), -kMaxCost, kMaxCost);
    }

    // The label under which the model knows the token: its own, that of <unk>, or kNoLabel.
    std::int32_t label_of(std::int64_t token) const;
    bool has_unigram(std::int32_t label) const { return unigram_index(label) >= 0; }
    const ArcRecord& unigram_arc(std::int32_t label) const { return unigram_arcs_[unigram_index(label)]; }

    Step advance(std::uint32_t state, std::int32_t label) const;
    std::uint32_t state_of(std::span<const std::int64_t> context) const;
    double log_prob(std::int64_t token, std::span<const std::int64_t> context) const;
    double score(std::span<const std::int64_t> tokens, bool bos, bool eos) const;
    double final_cost(std::uint32_t state) const;  // of </s>, backing off; kMaxCost at the unigrams where there is none

  private:
    std::ptrdiff_t unigram_index(std::int32_t label) const;  // -1 if the unigram state lacks the label

    const std::byte* states_;
    const std::byte* arcs_;
    std::uint32_t num_states_;
    std::uint64_t num_arcs_;
    std::uint32_t start_, unigram_state_;
    std::int32_t unk_label_;
    bool has_end_;
    std::vector<ArcRecord> unigram_arcs_;         // a copy: the one row that every search reads throughout
    std::vector<std::int32_t> unigram_by_label_;  // index into unigram_arcs_ or -1; empty where labels are too sparse
    std::optional<LabelIndexes> label_indexes_;
};

}  // namespace fst_core
