// A lattice, checked and put in the order that the searches want: the columns of every slot by rising token, so that a
// path's columns order lexicographically as its tokens do.
//
// A *slot* is a state, its *columns* are the arcs that leave it. Slots are numbered topologically; paths begin in slot
// 0. In a *sausage* every column of a slot leads to the next slot, and those of the last to the lattice's end. A
// sausage may carry *transitions*: what a column of a slot gains after each column of the slot before.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "hash_table.hpp"
#include "model.hpp"

namespace fst_core {

// Log-probabilities, transitions and alpha reach no further than this, a step's cost no further than 256 times
// Model::kMaxCost: so every score of every lattice is finite. A log-probability or transition at or below
// -kLargestWeight is a mask, as -inf is.
constexpr double kLargestWeight = 1e30;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// A sausage, [slots, k] row-major; token -1 pads, and a masked column is left out. transitions: [slots - 1, k, k], from
// a column of a slot to one of the next slot, or null; a masked one is never taken.
struct LatticeView {
    const std::int32_t* tokens;
    const double* log_probs;
    const float* transitions;
    std::int64_t slots;
    std::int64_t k;
};

// Any lattice: columns offsets[slot] to offsets[slot + 1] leave a slot, towards higher ones. A column without a token
// (Lattice::kEpsilon) may also lead to Lattice::kEnd: there a path is complete.
struct ArcsView {
    std::span<const std::int64_t> offsets;  // [slots + 1]
    std::span<const std::int32_t> tokens;   // [columns]
    std::span<const double> log_probs;      // [columns]
    std::span<const std::int32_t> targets;  // [columns]

    std::int32_t slots() const { return static_cast<std::int32_t>(offsets.size()) - 1; }
    // Throws std::invalid_argument for anything that the description above excludes.
    void check() const;
};

class Lattice {
  public:
    static constexpr std::int32_t kEpsilon = -1;  // a column without a token; the language model stays in its state
    static constexpr std::int32_t kEnd = -1;      // where complete paths lead
    static constexpr std::size_t kMostColumns = (1u << 25) - 1;

    // Every column of one slot, and an index from label to columns.
    struct Slot {
        std::int32_t first = 0;  // of this slot's columns among those of all slots
        std::int32_t size = 0;
        std::int32_t num_epsilons = 0;  // the first columns
        std::int32_t first_key = 0;     // of this slot's distinct labels
        std::int32_t num_keys = 0;
        std::int32_t first_flag = 0;  // of the filter
        std::uint32_t filter_mask = 0;
    };

    // Replaces the contents; keeps the memory. `model` may be null (labels are then not needed). `name` opens every
    // message of an error ("" or "lattice 3, "). Transitions are borrowed: a search reads few of them.
    void assign(const LatticeView& view, const Model* model, const char* name);
    void assign(const ArcsView& view, const Model* model);

    // Adds slots without any column after the last.
    void extend(std::int64_t slots);

    const Model* model() const { return model_; }
    std::int32_t slots() const { return static_cast<std::int32_t>(slots_.size()); }
    const Slot& slot(std::int32_t slot) const { return slots_[slot]; }
    bool is_sausage() const { return is_sausage_; }
    std::int32_t max_columns() const { return max_columns_; }
    std::size_t num_columns() const { return tokens_.size(); }
    // Tokens of the longest path.
    std::size_t longest() const { return longest_; }
    // Whether there are more than `most` paths through all slots, and more than `most` prefixes of them.
    bool has_more_paths(std::uint64_t most) const;
    bool has_more_prefixes(std::uint64_t most) const;

    // Of column `first + c` of a slot.
    std::int32_t token(std::int32_t column) const { return tokens_[column]; }
    std::span<const std::int32_t> tokens(const Slot& slot) const {
        return {tokens_.data() + slot.first, static_cast<std::size_t>(slot.size)};
    }
    const double* log_probs(std::int32_t slot) const { return log_probs_.data() + this->slot(slot).first; }
    // Of a column, the index that it had in its slot when the lattice was assigned.
    std::int32_t input_column(std::int32_t column) const { return inputs_[column]; }
    // The slots that a slot's columns lead to.
    const std::int32_t* targets(std::int32_t slot) const { return targets_.data() + this->slot(slot).first; }
    std::int32_t label(std::int32_t column) const { return labels_[column]; }

    bool has_transitions() const { return transitions_ != nullptr; }
    // What each column of a slot but the first gains after column `previous` of the slot before: -inf where masked.
    void transitions(std::int32_t slot, std::int32_t previous, double* gains) const {
        const std::int32_t first = this->slot(slot).first;
        const std::int32_t before = inputs_[this->slot(slot - 1).first + previous];
        const float* const row = transitions_ + (std::int64_t{slot - 1} * k_ + before) * k_;
        for (std::int32_t c = 0; c < this->slot(slot).size; ++c) gains[c] = unmasked(row[inputs_[first + c]]);
    }

    // The distinct labels of a slot, rising, and the columns that carry each: several where tokens share <unk>'s.
    std::span<const std::int32_t> keys(const Slot& slot) const {
        return {keys_.data() + slot.first_key, static_cast<std::size_t>(slot.num_keys)};
    }
    std::span<const std::int32_t> columns(const Slot& slot, std::int32_t key) const {
        const std::int32_t* bounds = key_bounds_.data() + slot.first_key + key;
        return {columns_.data() + bounds[0], static_cast<std::size_t>(bounds[1] - bounds[0])};
    }
    // Byte `label & filter_mask` is 1 where some key has such a label, else 0: it excludes most labels at once.
    const std::uint8_t* filter(const Slot& slot) const { return filter_.data() + slot.first_flag; }
    // The key with this label, or -1.
    std::int32_t find(const Slot& slot, std::int32_t label) const {
        return tables_[&slot - slots_.data()].find(static_cast<std::uint32_t>(label));
    }

  private:
    static double unmasked(float transition) {
        return transition <= static_cast<float>(-kLargestWeight) ? kMinusInfinity : transition;
    }
    void clear(const Model* model);
    void add_column(std::int32_t token, double log_prob, std::int32_t column, std::int32_t target);
    void end_slot(Slot& slot);
    void index_labels(Slot& slot);
    void check_transitions(const char* name) const;

    const Model* model_ = nullptr;
    std::vector<Slot> slots_;
    std::vector<std::int32_t> tokens_, labels_, inputs_, targets_;  // [columns of all slots]
    std::vector<double> log_probs_;
    std::vector<std::int32_t> keys_, key_bounds_, columns_;
    std::vector<HashTable<std::uint32_t>> tables_;  // [slots or more] the key of each label
    std::vector<std::uint8_t> filter_;
    std::vector<std::pair<std::int32_t, std::int32_t>> order_;  // scratch: (token or label, column)
    std::int32_t max_columns_ = 0;
    std::size_t longest_ = 0;
    bool is_sausage_ = true;
    const float* transitions_ = nullptr;
    std::int64_t k_ = 0;
};

}  // namespace fst_core
