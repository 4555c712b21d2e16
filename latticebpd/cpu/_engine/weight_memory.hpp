// Memory for weights and for the numbers of a pass.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace engine {

// Memory for all weights of a model, on huge pages where the system has them: a model's weights exceed what a TLB of
// small pages reaches. All of it is freed at once.
class WeightMemory {
  public:
    // Bytes, all 0, that begin on a cache line.
    std::uint8_t* take(std::size_t count) {
        const std::lock_guard<std::mutex> lock(taking_);
        count = (count + 63) / 64 * 64;
        if (count > left_) {
            const std::size_t size = std::max(kBlock, (count + kPage - 1) / kPage * kPage);
            Block block(static_cast<std::uint8_t*>(::operator new (size, std::align_val_t{kPage})));
#if defined(__linux__)
            madvise(block.get(), size, MADV_HUGEPAGE);
#endif
            blocks_.push_back(std::move(block));
            next_ = blocks_.back().get();
            left_ = size;
        }
        std::uint8_t* taken = next_;
        std::memset(taken, 0, count);
        next_ += count;
        left_ -= count;
        return taken;
    }

  private:
    static constexpr std::size_t kPage = 1 << 21, kBlock = 8 * kPage;
    struct Delete {
        void operator()(std::uint8_t* bytes) const { ::operator delete (bytes, std::align_val_t{kPage}); }
    };
    using Block = std::unique_ptr<std::uint8_t, Delete>;
    std::mutex taking_;
    std::vector<Block> blocks_;
    std::uint8_t* next_ = nullptr;
    std::size_t left_ = 0;
};

// Memory that a thread keeps from pass to pass, since an allocation costs more than filling it; aligned for vectors.
template <typename Number>
class Scratch {
  public:
    Number* of(std::size_t count) {
        if (count > count_) {
            const std::size_t wider = count + count / 2;
            count_ = 0;  // so that a failure leaves no memory, rather than less than is counted
            numbers_.reset();
            numbers_.reset(static_cast<Number*>(::operator new(wider * sizeof(Number), kLine)));
            count_ = wider;
        }
        return numbers_.get();
    }

  private:
    static constexpr std::align_val_t kLine{64};
    struct Delete {
        void operator()(Number* numbers) const { ::operator delete(numbers, kLine); }
    };
    std::size_t count_ = 0;
    std::unique_ptr<Number, Delete> numbers_;
};

}  // namespace engine
