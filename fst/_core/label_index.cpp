#include "label_index.hpp"

#include <bit>

#include "model.hpp"

namespace fst_core {

LabelIndex::LabelIndex(std::uint32_t state, const Row& row, std::uint32_t num_labels)
    : state_(state), blocks_(num_labels / 32 + 1) {
    std::int32_t previous = 0;
    for (std::uint32_t i = 0; i < row.num_arcs; ++i) {
        const std::int32_t label = row.label(i);
        if (label <= previous) refuse_order(state);
        previous = label;
        if (static_cast<std::uint32_t>(label) >= num_labels) break;
        Block& block = blocks_[static_cast<std::uint32_t>(label) / 32];
        if (block.labels == 0) block.first_arc = i;
        block.labels |= 1u << (static_cast<std::uint32_t>(label) % 32);
    }
}

LabelIndexes::LabelIndexes(std::uint32_t num_labels, std::size_t most)
    : num_labels_(num_labels), most_(most), mask_(std::bit_ceil(2 * most + 2) - 1),
      slots_(new std::atomic<const LabelIndex*>[mask_ + 1]()) {}

LabelIndexes::~LabelIndexes() {
    for (std::size_t at = 0; at <= mask_; ++at) delete slots_[at].load(std::memory_order_relaxed);
}

// Slots fill and never empty, and there are more of them than indexes: so a search ends at its state or at a free slot.
const LabelIndex* LabelIndexes::find(std::uint32_t state, const Row& row) const {
    if (!LabelIndex::pays(row.num_arcs, num_labels_)) return nullptr;
    std::unique_ptr<const LabelIndex> built;
    for (std::size_t at = (state * 0x9E3779B97F4A7C15ull >> 32) & mask_;; at = (at + 1) & mask_) {
        const LabelIndex* existing = slots_[at].load(std::memory_order_acquire);
        if (existing == nullptr) {
            if (built == nullptr) {
                built = std::make_unique<const LabelIndex>(state, row, num_labels_);
                if (count_.fetch_add(1, std::memory_order_relaxed) >= most_) break;
            }
            if (slots_[at].compare_exchange_strong(existing, built.get(), std::memory_order_acq_rel))
                return built.release();
        }
        if (existing->state() == state) {
            if (built != nullptr) count_.fetch_sub(1, std::memory_order_relaxed);  // another thread was first
            return existing;
        }
    }
    count_.fetch_sub(1, std::memory_order_relaxed);
    return nullptr;
}

}  // namespace fst_core
