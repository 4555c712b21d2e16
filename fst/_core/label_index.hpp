// An index of the labels of a long row: 32 labels a block, so that one cache line shows whether the row has a label,
// and on which arc. It is built when a search first reads the row and kept as long as the model.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace fst_core {

struct Row;

class LabelIndex {
  public:
    // A row whose index takes no more room than its arcs do.
    static bool pays(std::uint32_t num_arcs, std::uint32_t num_labels) { return num_arcs >= num_labels / 64; }
    // Labels from num_labels on are left out: no lattice has them. Throws where labels do not rise.
    LabelIndex(std::uint32_t state, const Row& row, std::uint32_t num_labels);

    std::uint32_t state() const { return state_; }
    bool has(std::int32_t label) const {
        return blocks_[static_cast<std::uint32_t>(label) / 32].labels >> (static_cast<std::uint32_t>(label) % 32) & 1;
    }
    // The arc with a label that the row has.
    std::uint32_t arc(std::int32_t label) const {
        const Block& block = blocks_[static_cast<std::uint32_t>(label) / 32];
        return block.first_arc + ones(block.labels & ((1u << (static_cast<std::uint32_t>(label) % 32)) - 1));
    }

  private:
    struct Block {
        std::uint32_t labels;     // bit i: the row has label 32 * block + i
        std::uint32_t first_arc;  // of these
    };
    static std::uint32_t ones(std::uint32_t bits) {  // without an instruction that old processors lack
        bits -= bits >> 1 & 0x55555555u;
        bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
        return ((bits + (bits >> 4)) & 0x0F0F0F0Fu) * 0x01010101u >> 24;
    }
    std::uint32_t state_;
    std::vector<Block> blocks_;
};

// The indexes built so far, by state; any number of threads may look up at once.
class LabelIndexes {
  public:
    explicit LabelIndexes(std::uint32_t num_labels, std::size_t most);
    ~LabelIndexes();
    LabelIndexes(const LabelIndexes&) = delete;
    LabelIndexes& operator=(const LabelIndexes&) = delete;

    // Null where the row is too short to pay, or the planned number of indexes exists.
    const LabelIndex* find(std::uint32_t state, const Row& row) const;

  private:
    std::uint32_t num_labels_;
    std::size_t most_, mask_;
    std::unique_ptr<std::atomic<const LabelIndex*>[]> slots_;
    mutable std::atomic<std::size_t> count_{0};
};

}  // namespace fst_core
