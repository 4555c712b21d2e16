// y = x W^T with W quantized to int8, for few rows of x: for drafts, which need not be exact.
//
//     y[o] = s[o] t sum_i w[o, i] z[i]    w = round(W / s), s[o] = max |W[o]| / 127
//                                         z = round(x / t), t = max |x| / most
//
// `most`, up to 32767, is the largest value with which no int32 sum overflows. Integer sums are exact in any order, so
// results are the same bits on every processor and batch-invariant.
//
// The cost is reading W, a quarter of the bytes of float32. W lies in panels of 32 outputs, two inputs of an output
// next to each other, as multiply-add instructions take them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../_engine/weight_memory.hpp"
#include "thread_pool.hpp"

namespace cpu_kernels {

constexpr std::size_t kPanel = 32, kMostRows = 8;

// Calls put(i, integer up to `most`) for every number; returns the scale, NaN if a number is not finite.
template <typename Put>
inline float quantize(const float* from, std::size_t count, float most, const Put& put) {
    float largest = 0.0f, nan = 0.0f;
    for (std::size_t i = 0; i < count; ++i) {
        largest = std::max(largest, std::abs(from[i]));
        nan += from[i] * 0.0f;
    }
    const float scale = largest / most + nan, factor = scale > 0.0f ? most / largest : 0.0f;
    const bool usable = std::isfinite(factor) && factor > 0.0f;
    for (std::size_t i = 0; i < count; ++i)
        put(i, usable ? static_cast<int>(std::lrint(std::clamp(from[i] * factor, -most, most))) : 0);
    return scale;
}

// Sums of a panel, [rows, kPanel]. weights: [pairs, kPanel, 2]; x: [pairs, rows], two int16 each.
using PanelSums = void (*)(const std::int8_t* weights, const std::int32_t* x, std::size_t pairs, std::int32_t* sums);

inline void plain_sums(const std::int8_t* weights, const std::int32_t* x, std::size_t pairs, std::int32_t* sums) {
    std::fill_n(sums, kPanel, 0);
    for (std::size_t pair = 0; pair < pairs; ++pair, weights += 2 * kPanel) {
        const std::int32_t first = static_cast<std::int16_t>(x[pair]), second = x[pair] >> 16;
        for (std::size_t o = 0; o < kPanel; ++o) sums[o] += weights[2 * o] * first + weights[2 * o + 1] * second;
    }
}

#if defined(__x86_64__)
template <int kRows>
[[gnu::target("avx2")]] void avx2_sums(const std::int8_t* weights, const std::int32_t* x, std::size_t pairs,
                                       std::int32_t* sums) {
    __m256i total[kRows][4];
    for (auto& row : total)
        for (__m256i& each : row) each = _mm256_setzero_si256();
    for (std::size_t pair = 0; pair < pairs; ++pair, weights += 2 * kPanel, x += kRows) {
        __builtin_prefetch(weights + engine::kAhead, 0, 2);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights) + i));
#pragma GCC unroll 2
            for (int r = 0; r < kRows; ++r)
                total[r][i] = _mm256_add_epi32(total[r][i], _mm256_madd_epi16(w, _mm256_set1_epi32(x[r])));
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int i = 0; i < 4; ++i)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + r * kPanel) + i, total[r][i]);
}

template <int kRows>
[[gnu::target("avx512f,avx512bw,avx512vnni")]] void vnni_sums(const std::int8_t* weights, const std::int32_t* x,
                                                              std::size_t pairs, std::int32_t* sums) {
    __m512i low[kRows], high[kRows];
    for (int r = 0; r < kRows; ++r) low[r] = high[r] = _mm512_setzero_si512();
    for (std::size_t pair = 0; pair < pairs; ++pair, weights += 2 * kPanel, x += kRows) {
        __builtin_prefetch(weights + engine::kAhead, 0, 2);
        const __m256i* w = reinterpret_cast<const __m256i*>(weights);
        const __m512i lower = _mm512_cvtepi8_epi16(_mm256_loadu_si256(w));
        const __m512i upper = _mm512_cvtepi8_epi16(_mm256_loadu_si256(w + 1));
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const __m512i both = _mm512_set1_epi32(x[r]);
            low[r] = _mm512_dpwssd_epi32(low[r], lower, both);
            high[r] = _mm512_dpwssd_epi32(high[r], upper, both);
        }
    }
    for (int r = 0; r < kRows; ++r) {
        _mm512_storeu_si512(sums + r * kPanel, low[r]);
        _mm512_storeu_si512(sums + r * kPanel + 16, high[r]);
    }
}
#endif

// For each instruction set, widest first: sums of 1, 2, ... rows, as many as its registers hold, at most kMostRows.
inline std::vector<std::vector<PanelSums>> int8_isas() {
    std::vector<std::vector<PanelSums>> supported;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni"))
        supported.push_back({vnni_sums<1>, vnni_sums<2>, vnni_sums<3>, vnni_sums<4>, vnni_sums<5>, vnni_sums<6>,
                             vnni_sums<7>, vnni_sums<8>});
    if (__builtin_cpu_supports("avx2")) supported.push_back({avx2_sums<1>, avx2_sums<2>});
#endif
    supported.push_back({plain_sums});
    return supported;
}

class Int8Weights {
  public:
    // weight: [outputs, inputs], which is copied to `memory`. isa: index into int8_isas().
    Int8Weights(const float* weight, std::size_t outputs, std::size_t inputs, std::size_t isa,
                std::shared_ptr<engine::WeightMemory> memory = std::make_shared<engine::WeightMemory>())
        : sums_(int8_isas().at(isa)), outputs_(outputs), inputs_(inputs), pairs_((inputs + 1) / 2),
          count_((outputs + kPanel - 1) / kPanel), memory_(std::move(memory)),
          panels_(reinterpret_cast<std::int8_t*>(memory_->take(std::max<std::size_t>(1, count_ * kPanel * 2 * pairs_)))),
          scales_(outputs) {
        for (std::size_t o = 0; o < outputs; ++o)
            scales_[o] = quantize(weight + o * inputs, inputs, 127.0f, [&](std::size_t i, int number) {
                panels_[index(o, i)] = static_cast<std::int8_t>(number);
            });
    }

    std::size_t outputs() const { return outputs_; }

    // `most` of x, see above.
    float most() const {
        constexpr std::size_t kMax = std::numeric_limits<std::int32_t>::max();
        return static_cast<float>(std::min<std::size_t>(32767, kMax / (127 * std::max<std::size_t>(1, inputs_)) - 1));
    }

    // x: [rows, inputs]; y: [rows, outputs].
    void multiply(const float* x, std::size_t rows, float* y, std::size_t threads) const {
        if (rows == 0) return;
        const std::size_t blocks = (rows + sums_.size() - 1) / sums_.size();
        const auto first = [&](std::size_t block) { return block * (rows / blocks) + std::min(block, rows % blocks); };
        thread_local std::vector<std::int32_t> quantized;  // kept: an allocation costs more than filling it
        thread_local std::vector<float> scales;
        quantized.assign(rows * pairs_, 0);
        scales.resize(rows);
        for (std::size_t block = 0; block < blocks; ++block) {
            const std::size_t begin = first(block), height = first(block + 1) - begin;
            for (std::size_t row = begin; row < begin + height; ++row) {
                std::int32_t* to = quantized.data() + begin * pairs_ + (row - begin);
                scales[row] = quantize(x + row * inputs_, inputs_, most(), [&](std::size_t i, int number) {
                    const std::uint32_t low = static_cast<std::uint32_t>(number & 0xffff);
                    to[i / 2 * height] |= static_cast<std::int32_t>(low << (i % 2 * 16));
                });
            }
        }
        const std::int32_t* z = quantized.data();  // the caller's; other threads have their own
        const float* row_scales = scales.data();
        const std::size_t chunk = std::max<std::size_t>(1, count_ / (threads * 4));
        ThreadPool::instance().run(threads, (count_ + chunk - 1) / chunk, [&](std::size_t part) {
            std::int32_t sums[kMostRows * kPanel];
            for (std::size_t panel = part * chunk; panel < std::min(count_, (part + 1) * chunk); ++panel)
                for (std::size_t block = 0; block < blocks; ++block) {
                    const std::size_t begin = first(block), height = first(block + 1) - begin;
                    sums_[height - 1](panels_ + panel * kPanel * 2 * pairs_, z + begin * pairs_, pairs_, sums);
                    const std::size_t output = panel * kPanel, width = std::min(outputs_ - output, kPanel);
                    for (std::size_t row = 0; row < height; ++row) {
                        float* to = y + (begin + row) * outputs_ + output;
                        for (std::size_t o = 0; o < width; ++o)
                            to[o] = static_cast<float>(sums[row * kPanel + o]) *
                                    (scales_[output + o] * row_scales[begin + row]);
                    }
                }
        });
    }

  private:
    std::size_t index(std::size_t output, std::size_t input) const {
        return output / kPanel * kPanel * 2 * pairs_ + input / 2 * 2 * kPanel + output % kPanel * 2 + input % 2;
    }

    std::vector<PanelSums> sums_;
    std::size_t outputs_, inputs_, pairs_, count_;
    std::shared_ptr<engine::WeightMemory> memory_;
    std::int8_t* panels_;
    std::vector<float> scales_;
};

}  // namespace cpu_kernels
