// A sausage lattice, checked and put in the order that the searches want: the columns of every slot by rising token,
// so that a path's columns order lexicographically as its tokens do. It may carry *transitions*: what a column of a slot
// gains behind each column of the slot before.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "model.hpp"

namespace latticebpd {

// Log-probabilities, transitions and alpha reach no further than this, a step's cost no further than 256 times
// Model::kMaxCost: so every score of every lattice is finite. A log-probability or transition at or below -kLargestWeight
// is a mask, as -inf is.
constexpr double kLargestWeight = 1e30;

// [slots, k] row-major; token -1 pads, and a masked column is left out. transitions: [slots - 1, k, k], from a column of
// the slot before to one of the slot behind, or null; a masked one is never taken.
struct LatticeView {
    const std::int32_t* tokens;
    const double* log_probs;
    const float* transitions;
    std::int64_t slots;
    std::int64_t k;
};

class Lattice {
  public:
    // Every column of one slot, and an index from label to columns.
    struct Slot {
        std::int32_t first = 0;  // of this slot's columns among those of all slots
        std::int32_t size = 0;
        std::int32_t first_key = 0;  // of this slot's distinct labels
        std::int32_t num_keys = 0;
        std::int32_t first_bucket = 0;
        std::int32_t hash_shift = 0;
        std::int32_t first_flag = 0;  // of the filter
        std::uint32_t filter_mask = 0;
    };

    // Replaces the contents; keeps the memory. `model` may be null (labels are then not needed). `name` opens every
    // message of an error ("" or "lattice 3, "). Transitions are borrowed: a search reads few of them.
    void assign(const LatticeView& view, const Model* model, const char* name);

    // Adds slots without any column behind the last; `model` as for `assign`.
    void extend(std::int64_t slots, const Model* model);

    std::int32_t slots() const { return static_cast<std::int32_t>(slots_.size()); }
    const Slot& slot(std::int32_t slot) const { return slots_[static_cast<std::size_t>(slot)]; }
    std::int32_t max_columns() const { return max_columns_; }
    // Whether there are more than `most` paths through all slots, and more than `most` prefixes of them.
    bool has_more_paths(std::uint64_t most) const;
    bool has_more_prefixes(std::uint64_t most) const;

    // Of column `first + c` of a slot.
    std::int32_t token(std::int32_t column) const { return tokens_[static_cast<std::size_t>(column)]; }
    double log_prob(std::int32_t column) const { return log_probs_[static_cast<std::size_t>(column)]; }
    const double* log_probs(std::int32_t slot) const { return log_probs_.data() + this->slot(slot).first; }
    std::int32_t label(std::int32_t column) const { return labels_[static_cast<std::size_t>(column)]; }

    bool has_transitions() const { return transitions_ != nullptr; }
    // What each column of a slot but the first gains behind column `previous` of the slot before: -inf where masked.
    void transitions(std::int32_t slot, std::int32_t previous, double* gains) const {
        const std::int32_t first = this->slot(slot).first;
        const std::int32_t before = given_[static_cast<std::size_t>(this->slot(slot - 1).first + previous)];
        const float* const row = transitions_ + (std::int64_t{slot - 1} * k_ + before) * k_;
        for (std::int32_t c = 0; c < this->slot(slot).size; ++c) gains[c] = unmasked(row[given_[static_cast<std::size_t>(first + c)]]);
    }

    // The distinct labels of a slot, rising, and the columns that carry each: several where tokens share <unk>'s.
    std::span<const std::int32_t> keys(const Slot& slot) const {
        return {keys_.data() + slot.first_key, static_cast<std::size_t>(slot.num_keys)};
    }
    std::span<const std::int32_t> columns(const Slot& slot, std::int32_t key) const {
        const std::int32_t* bounds = key_bounds_.data() + slot.first_key + key;
        return {columns_.data() + bounds[0], static_cast<std::size_t>(bounds[1] - bounds[0])};
    }
    // Byte `label & filter_mask` is 1 where some key has such a label, else 0: a quick no for most labels.
    const std::uint8_t* filter(const Slot& slot) const { return filter_.data() + slot.first_flag; }
    // The key with this label, or -1.
    std::int32_t find(const Slot& slot, std::int32_t label) const {
        const Bucket* buckets = buckets_.data() + slot.first_bucket;
        const std::uint32_t mask = 0xFFFFFFFFu >> slot.hash_shift;
        for (std::uint32_t at = hash(label, slot.hash_shift);; at = (at + 1) & mask) {
            if (buckets[at].label == label) return buckets[at].key;
            if (buckets[at].label == Model::kNoLabel) return -1;
        }
    }

  private:
    struct Bucket {
        std::int32_t label;
        std::int32_t key;
    };
    static std::uint32_t hash(std::int32_t label, std::int32_t shift) { return (static_cast<std::uint32_t>(label) * 0x9E3779B1u) >> shift; }
    static double unmasked(float transition) {
        return transition <= static_cast<float>(-kLargestWeight) ? -std::numeric_limits<double>::infinity() : transition;
    }
    void index_labels(Slot& slot);
    void check_transitions(const char* name) const;

    std::vector<Slot> slots_;
    std::vector<std::int32_t> tokens_, labels_, given_;  // given_: a column's place in its slot as it was given
    std::vector<double> log_probs_;
    std::vector<std::int32_t> keys_, key_bounds_, columns_;
    std::vector<Bucket> buckets_;
    std::vector<std::uint8_t> filter_;
    std::vector<std::pair<std::int32_t, std::int32_t>> order_;  // scratch: (token or label, column)
    std::int32_t max_columns_ = 0;
    const float* transitions_ = nullptr;
    std::int64_t k_ = 0;
};

}  // namespace latticebpd
