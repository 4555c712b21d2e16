// y = x W^T + b in float32, for few rows of x and a large matrix W.
//
// The cost is reading W, so W is packed once into panels that are read from beginning to end: a panel holds the weights
// of as many outputs as two vectors have lanes, input by input.
//
// Every output is one sum over the inputs in their order, one instruction on one lane a step, for any number of rows
// and threads: results are batch-invariant.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "instruction_sets.hpp"

namespace cpu_kernels {

// Lanes of a vector, and rows whose sums fit into the registers.
constexpr int vector_lanes(Isa isa) { return isa == Isa::kAvx512 ? 16 : isa == Isa::kAvx2 ? 8 : 4; }
constexpr int block_rows(Isa isa) { return isa == Isa::kAvx512 ? 12 : 6; }

// One product; its rows, as a row operation, are the panels.
// x: blocks of rows, each block input by input; biases: padded to whole panels; y: [rows, outputs].
struct Product {
    const float *panels, *biases, *x;
    float* y;
    std::size_t inputs, outputs, rows, blocks;

    // The first row of a block; block sizes differ by at most 1.
    std::size_t first_row(std::size_t block) const { return block * (rows / blocks) + std::min(block, rows % blocks); }

    // While the blocks go through one panel, the next panel is prefetched.
    template <Isa kIsa>
    [[gnu::always_inline]] void row(std::size_t panel) const {
        const std::size_t line = 2 * vector_lanes(kIsa) * sizeof(float), size = inputs * line;
        for (std::size_t block = 0; block < blocks; ++block) {
            const char* current = reinterpret_cast<const char*>(panels) + panel * size;
            const char* ahead =
                blocks > 1 ? current + size + block * (size / blocks) : current + (rows == 1 ? 4096 : 16384);
            const std::size_t first = first_row(block), height = first_row(block + 1) - first;
            block_of<vector_lanes(kIsa), block_rows(kIsa)>(height, panel, first, ahead, line / blocks);
        }
    }

    // A panel's outputs for a block of `height` rows, at most kRows.
    template <int kLanes, int kRows>
    [[gnu::always_inline]] void block_of(std::size_t height, std::size_t panel, std::size_t first, const char* ahead,
                                         std::size_t step) const {
        if (height == kRows) sums<kLanes, kRows>(panel, first, ahead, step);
        else if constexpr (kRows > 1) block_of<kLanes, kRows - 1>(height, panel, first, ahead, step);
    }

    // ahead: what to prefetch, `step` bytes for each input.
    template <int kLanes, int kRows>
    [[gnu::always_inline]] void sums(std::size_t panel, std::size_t first, const char* ahead, std::size_t step) const {
        typedef float Vector __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
        const auto vector = [](const float* from) { return reinterpret_cast<const Vector*>(from); };
        const float *weights = panels + panel * inputs * 2 * kLanes, *column = x + first * inputs;
        Vector low[kRows] = {}, high[kRows] = {};
        for (std::size_t i = 0; i < inputs; ++i, weights += 2 * kLanes, column += kRows, ahead += step) {
            __builtin_prefetch(ahead, 0, 2);
            if constexpr (kLanes == 16) __builtin_prefetch(ahead + 64, 0, 2);
            const Vector lower = vector(weights)[0], upper = vector(weights)[1];
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) {
                low[r] += lower * column[r];
                high[r] += upper * column[r];
            }
        }
        const std::size_t begin = panel * 2 * kLanes, width = std::min<std::size_t>(2 * kLanes, outputs - begin);
        const Vector* bias = vector(biases + begin);
        float* to = y + first * outputs + begin;
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r, to += outputs) {
            const Vector biased[2] = {low[r] + bias[0], high[r] + bias[1]};
            if (width == 2 * kLanes) std::memcpy(to, biased, sizeof biased);
            else std::memcpy(to, biased, width * sizeof(float));
        }
    }
};

// An array on huge pages where the system has them: a model's weights exceed what a TLB of small pages reaches.
template <typename Number>
class HugePageArray {
  public:
    explicit HugePageArray(std::size_t count)
        : numbers_(static_cast<Number*>(::operator new(count * sizeof(Number), kPage))) {
#if defined(__linux__)
        madvise(numbers_.get(), count * sizeof(Number), MADV_HUGEPAGE);
#endif
        std::fill_n(numbers_.get(), count, Number{});
    }
    Number* get() const { return numbers_.get(); }

  private:
    static constexpr std::align_val_t kPage{1 << 21};
    struct Delete {
        void operator()(Number* numbers) const { ::operator delete(numbers, kPage); }
    };
    std::unique_ptr<Number, Delete> numbers_;
};

// A matrix [outputs, inputs] and its bias, [outputs] or null.
struct Matrix {
    const float *weight, *bias;
    std::size_t outputs;
};

// Packed weights of one or more matrices.
class Panels {
  public:
    // matrices: of the same inputs, stacked by their outputs; they are copied.
    Panels(const std::vector<Matrix>& matrices, std::size_t inputs, Isa isa)
        : isa_(isa),
          inputs_(inputs),
          outputs_(total(matrices)),
          count_((outputs_ + width() - 1) / width()),
          panels_(std::max<std::size_t>(1, count_ * width() * inputs)),
          biases_(std::max<std::size_t>(1, count_ * width()), 0.0f) {
        std::size_t output = 0;
        for (const Matrix& matrix : matrices)
            for (std::size_t own = 0; own < matrix.outputs; ++own, ++output) {
                if (matrix.bias != nullptr) biases_[output] = matrix.bias[own];
                float* to = panels_.get() + output / width() * width() * inputs + output % width();
                for (std::size_t i = 0; i < inputs; ++i) to[i * width()] = matrix.weight[own * inputs + i];
            }
    }

    // Outputs of a panel.
    std::size_t width() const { return 2 * static_cast<std::size_t>(vector_lanes(isa_)); }

    // One panel's outputs for one row, x: [inputs], written to their indices of y: [outputs].
    void panel(const float* x, std::size_t panel, float* y) const {
        run_rows(Product{panels_.get(), biases_.data(), x, y, inputs_, outputs_, 1, 1}, panel, panel + 1, isa_);
    }

    // x: [rows, inputs]; y: [rows, outputs].
    void multiply(const float* x, std::size_t rows, float* y, std::size_t threads) const {
        if (rows == 0) return;
        Product product{panels_.get(), biases_.data(), x, y, inputs_, outputs_, rows, 0};
        const auto most = static_cast<std::size_t>(block_rows(isa_));
        product.blocks = (rows + most - 1) / most;
        thread_local std::vector<float> blocks;  // kept: an allocation costs more than filling it
        if (rows > 1) {
            if (blocks.size() < rows * inputs_) blocks.resize(rows * inputs_);
            for (std::size_t block = 0; block < product.blocks; ++block) {
                const std::size_t first = product.first_row(block), height = product.first_row(block + 1) - first;
                for (std::size_t row = 0; row < height; ++row)
                    for (std::size_t i = 0; i < inputs_; ++i)
                        blocks[first * inputs_ + i * height + row] = x[(first + row) * inputs_ + i];
            }
            product.x = blocks.data();
        }
        for_each_row(product, count_, threads, isa_, std::max<std::size_t>(1, count_ / (threads * 4)));
    }

  private:
    static std::size_t total(const std::vector<Matrix>& matrices) {
        std::size_t outputs = 0;
        for (const Matrix& matrix : matrices) outputs += matrix.outputs;
        return outputs;
    }

    Isa isa_;
    std::size_t inputs_, outputs_, count_;
    HugePageArray<float> panels_;
    std::vector<float> biases_;
};

}  // namespace cpu_kernels
