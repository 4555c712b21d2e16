// Products of few rows with a large matrix, y = x W^T + b in float32.
//
// Reading W is what such a product costs, so W is laid out once in panels that are read from beginning to end: a panel holds the
// weights of as many outputs as two vectors have lanes, input by input.
//
// Every output is one sum over its inputs in their order, each step one instruction on one lane, however many rows there are and
// whichever thread does it.  So a row's outputs are the same bits among any other rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "pool.hpp"

namespace latticebpd {

// A product at work.  x: blocks of rows, each input by input; biases: padded to whole panels; y: [rows, outputs].
struct Product {
    const float *panels, *biases, *x;
    float* y;
    std::size_t inputs, outputs, rows, blocks;

    // Where a block begins; blocks are as equal as can be.
    std::size_t row(std::size_t block) const { return block * (rows / blocks) + std::min(block, rows % blocks); }
};

// A panel's outputs for `kRows` rows of one block.  ahead: what will be read next, `step` bytes of it for each input.
template <int kLanes, int kRows>
[[gnu::always_inline]] inline void panel_rows(const Product& of, std::size_t panel, std::size_t row, const char* ahead, std::size_t step) {
    typedef float Vector __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
    const float *weights = of.panels + panel * of.inputs * 2 * kLanes, *x = of.x + row * of.inputs;
    Vector low[kRows] = {}, high[kRows] = {};
    for (std::size_t i = 0; i < of.inputs; ++i, weights += 2 * kLanes, x += kRows, ahead += step) {
        __builtin_prefetch(ahead, 0, 2);
        if constexpr (kLanes == 16) __builtin_prefetch(ahead + 64, 0, 2);
        const Vector first = *reinterpret_cast<const Vector*>(weights), second = *reinterpret_cast<const Vector*>(weights + kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            low[r] += first * x[r];
            high[r] += second * x[r];
        }
    }
    const std::size_t begin = panel * 2 * kLanes, outputs = std::min<std::size_t>(2 * kLanes, of.outputs - begin);
    const Vector* biases = reinterpret_cast<const Vector*>(of.biases + begin);
    float* y = of.y + row * of.outputs + begin;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r, y += of.outputs) {
        const Vector sums[2] = {low[r] + biases[0], high[r] + biases[1]};
        if (outputs == 2 * kLanes) {
            reinterpret_cast<Vector*>(y)[0] = sums[0];
            reinterpret_cast<Vector*>(y)[1] = sums[1];
        } else {
            std::memcpy(y, sums, outputs * sizeof(float));
        }
    }
}

// Panels begin .. end - 1 for all rows.  The next panel is fetched while the blocks of rows go through one.
template <int kLanes, int kMostRows>
[[gnu::always_inline]] inline void panels_of(const Product& of, std::size_t begin, std::size_t end) {
    const std::size_t line = 2 * kLanes * sizeof(float), size = of.inputs * line;
    for (std::size_t panel = begin; panel < end; ++panel) {
        for (std::size_t block = 0; block < of.blocks; ++block) {
            const char* here = reinterpret_cast<const char*>(of.panels) + panel * size;
            const char* ahead = of.blocks > 1 ? here + size + block * (size / of.blocks) : here + (of.rows == 1 ? 4096 : 16384);
            const std::size_t row = of.row(block), step = line / of.blocks;
            switch (of.row(block + 1) - row) {
#define NARROW_CASE(kRows) \
    case kRows: \
        if constexpr (kRows <= kMostRows) panel_rows<kLanes, kRows>(of, panel, row, ahead, step); \
        break;
                NARROW_CASE(1) NARROW_CASE(2) NARROW_CASE(3) NARROW_CASE(4) NARROW_CASE(5) NARROW_CASE(6)
                NARROW_CASE(7) NARROW_CASE(8) NARROW_CASE(9) NARROW_CASE(10) NARROW_CASE(11) NARROW_CASE(12)
#undef NARROW_CASE
            }
        }
    }
}

// What a processor can do: lanes of a vector, rows at a time (as many as its registers hold the sums of), and the work.
struct Kind {
    std::size_t lanes, most_rows;
    void (*panels)(const Product&, std::size_t, std::size_t);
};

inline void plain_panels(const Product& of, std::size_t begin, std::size_t end) { panels_of<4, 6>(of, begin, end); }

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] inline void avx2_panels(const Product& of, std::size_t begin, std::size_t end) { panels_of<8, 6>(of, begin, end); }
[[gnu::target("avx512f,avx2,fma")]] inline void avx512_panels(const Product& of, std::size_t begin, std::size_t end) {
    panels_of<16, 12>(of, begin, end);
}
#endif

inline std::vector<Kind> kinds() {
    std::vector<Kind> found;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma")) found.push_back({16, 12, avx512_panels});
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back({8, 6, avx2_panels});
#endif
    found.push_back({4, 6, plain_panels});
    return found;
}

// Numbers on large pages where the system has them: a model's weights are far more than small ones' addresses find room for.
template <typename Number>
class Memory {
  public:
    explicit Memory(std::size_t count) : numbers_(static_cast<Number*>(::operator new(count * sizeof(Number), kPage))) {
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

// A matrix [outputs, inputs] and what is added to its product, [outputs] or null; they are copied.
struct Matrix {
    const float *weight, *bias;
    std::size_t outputs;
};

class Panels {
  public:
    // matrices: of the same inputs, one below the other.  kind: which of the processor's, from the widest.
    Panels(const std::vector<Matrix>& matrices, std::size_t inputs, std::size_t kind)
        : kind_(kinds().at(kind)),
          outputs_(total(matrices)),
          inputs_(inputs),
          count_((outputs_ + width() - 1) / width()),
          panels_(std::max<std::size_t>(1, count_ * width() * inputs)),
          biases_(std::max<std::size_t>(1, count_ * width()), 0.0f) {
        std::size_t output = 0;
        for (const Matrix& matrix : matrices) {
            if (matrix.bias != nullptr) std::copy_n(matrix.bias, matrix.outputs, biases_.begin() + static_cast<std::ptrdiff_t>(output));
            for (std::size_t own = 0; own < matrix.outputs; ++own, ++output) {
                float* to = panels_.get() + output / width() * width() * inputs + output % width();
                for (std::size_t i = 0; i < inputs; ++i) to[i * width()] = matrix.weight[own * inputs + i];
            }
        }
    }

    std::size_t outputs() const { return outputs_; }

    // Outputs of a panel.
    std::size_t width() const { return 2 * kind_.lanes; }

    // Of one row, given: [inputs], a panel's outputs, to be written at their places of y, [outputs].
    void panel(const float* given, std::size_t panel, float* y) const {
        kind_.panels({panels_.get(), biases_.data(), given, y, inputs_, outputs_, 1, 1}, panel, panel + 1);
    }

    // given: [rows, inputs]; y: [rows, outputs], to be written.
    void multiply(const float* given, std::size_t rows, float* y, std::size_t threads) const {
        if (rows == 0) return;
        Product product{panels_.get(), biases_.data(), given, y, inputs_, outputs_, rows, 0};
        product.blocks = (rows + kind_.most_rows - 1) / kind_.most_rows;
        thread_local std::vector<float> turned;  // kept: new memory costs more than the turning
        if (rows > 1) {
            if (turned.size() < rows * inputs_) turned.resize(rows * inputs_);
            for (std::size_t block = 0; block < product.blocks; ++block) {
                const std::size_t begin = product.row(block), height = product.row(block + 1) - begin;
                for (std::size_t row = 0; row < height; ++row)
                    for (std::size_t i = 0; i < inputs_; ++i)
                        turned[begin * inputs_ + i * height + row] = given[(begin + row) * inputs_ + i];
            }
            product.x = turned.data();
        }
        const std::size_t chunk = std::max<std::size_t>(1, count_ / (threads * 4)), chunks = (count_ + chunk - 1) / chunk;
        Pool::instance().run(threads, chunks, [&](std::size_t i) { kind_.panels(product, i * chunk, std::min(count_, (i + 1) * chunk)); });
    }

  private:
    static std::size_t total(const std::vector<Matrix>& matrices) {
        std::size_t outputs = 0;
        for (const Matrix& matrix : matrices) outputs += matrix.outputs;
        return outputs;
    }

    Kind kind_;
    std::size_t outputs_, inputs_, count_;
    Memory<float> panels_;
    std::vector<float> biases_;
};

}  // namespace latticebpd
