// Products of few rows with a large matrix whose weights are rounded to 8 bits, y = x W^T: for drafts, which need not be exact.
//
//     y[o] = s[o] t sum_i w[o, i] z[i]    w = W / s rounded, s[o] = max |W[o]| / 127;  z = x / t rounded, t = max |x| / most
//
// `most`, up to 32767, is what no sum can overflow with.  So sums are whole numbers, exact in any order: the same bits on every
// processor, on every thread, among any other rows.
//
// Reading W is what such a product costs; it is a quarter of what it was.  It lies in panels of 32 outputs, two inputs of each output
// side by side, as processors multiply and add them in one step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "linear.hpp"
#include "pool.hpp"

namespace latticebpd {

constexpr std::size_t kPanel = 32, kMostRows = 8;

// Numbers as whole ones up to `most`, put down by put(i, number); what they are to be multiplied by.  Not a number where one is none.
template <typename Put>
inline float round_all(const float* from, std::size_t count, float most, const Put& put) {
    float largest = 0.0f, nothing = 0.0f;
    for (std::size_t i = 0; i < count; ++i) {
        largest = std::max(largest, std::abs(from[i]));
        nothing += from[i] * 0.0f;
    }
    const float scale = largest / most + nothing, factor = scale > 0.0f ? most / largest : 0.0f;
    for (std::size_t i = 0; i < count; ++i)
        put(i, std::isfinite(factor) && factor > 0.0f ? static_cast<int>(std::lrint(std::clamp(from[i] * factor, -most, most))) : 0);
    return scale;
}

// Sums of a panel, [rows, kPanel], of so many rows.  weights: [pairs, kPanel, 2]; x: [pairs, rows], two numbers of 16 bits in each.
using PanelSums = void (*)(const std::int8_t* weights, const std::int32_t* x, std::size_t pairs, std::int32_t* sums);

constexpr std::size_t kAhead = 8192;  // bytes

inline void plain_sums(const std::int8_t* weights, const std::int32_t* x, std::size_t pairs, std::int32_t* sums) {
    std::fill_n(sums, kPanel, 0);
    for (std::size_t pair = 0; pair < pairs; ++pair, weights += 2 * kPanel) {
        const std::int32_t first = static_cast<std::int16_t>(x[pair]), second = x[pair] >> 16;
        for (std::size_t o = 0; o < kPanel; ++o) sums[o] += weights[2 * o] * first + weights[2 * o + 1] * second;
    }
}

#if defined(__x86_64__)
template <int kRows>
[[gnu::target("avx2")]] void avx2_sums(const std::int8_t* weights, const std::int32_t* x, std::size_t pairs, std::int32_t* sums) {
    __m256i found[kRows][4];
    for (auto& row : found)
        for (__m256i& each : row) each = _mm256_setzero_si256();
    for (std::size_t pair = 0; pair < pairs; ++pair, weights += 2 * kPanel, x += kRows) {
        __builtin_prefetch(weights + kAhead, 0, 2);
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) {
            const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights) + part));
#pragma GCC unroll 2
            for (int r = 0; r < kRows; ++r)
                found[r][part] = _mm256_add_epi32(found[r][part], _mm256_madd_epi16(wide, _mm256_set1_epi32(x[r])));
        }
    }
    for (int r = 0; r < kRows; ++r)
        for (int part = 0; part < 4; ++part) _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + r * kPanel) + part, found[r][part]);
}

template <int kRows>
[[gnu::target("avx512f,avx512bw,avx512vnni")]] void vnni_sums(const std::int8_t* weights, const std::int32_t* x, std::size_t pairs,
                                                              std::int32_t* sums) {
    __m512i low[kRows], high[kRows];
    for (int r = 0; r < kRows; ++r) low[r] = high[r] = _mm512_setzero_si512();
    for (std::size_t pair = 0; pair < pairs; ++pair, weights += 2 * kPanel, x += kRows) {
        __builtin_prefetch(weights + kAhead, 0, 2);
        const __m512i first = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights)));
        const __m512i second = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights) + 1));
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const __m512i both = _mm512_set1_epi32(x[r]);
            low[r] = _mm512_dpwssd_epi32(low[r], first, both);
            high[r] = _mm512_dpwssd_epi32(high[r], second, both);
        }
    }
    for (int r = 0; r < kRows; ++r) {
        _mm512_storeu_si512(sums + r * kPanel, low[r]);
        _mm512_storeu_si512(sums + r * kPanel + 16, high[r]);
    }
}
#endif

// What a processor can do: the sums of 1, 2, ... rows at a time, as many as its registers hold, kMostRows at the most.
inline std::vector<std::vector<PanelSums>> rounded_kinds() {
    std::vector<std::vector<PanelSums>> found;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni"))
        found.push_back({vnni_sums<1>, vnni_sums<2>, vnni_sums<3>, vnni_sums<4>, vnni_sums<5>, vnni_sums<6>, vnni_sums<7>, vnni_sums<8>});
    if (__builtin_cpu_supports("avx2")) found.push_back({avx2_sums<1>, avx2_sums<2>});
#endif
    found.push_back({plain_sums});
    return found;
}

class Rounded {
  public:
    // weight: [outputs, inputs], which is copied.  kind: which of the processor's, from the widest.
    Rounded(const float* weight, std::size_t outputs, std::size_t inputs, std::size_t kind)
        : sums_(rounded_kinds().at(kind)),
          outputs_(outputs),
          inputs_(inputs),
          pairs_((inputs + 1) / 2),
          count_((outputs + kPanel - 1) / kPanel),
          panels_(std::max<std::size_t>(1, count_ * kPanel * 2 * pairs_)),
          scales_(outputs) {
        for (std::size_t o = 0; o < outputs; ++o) {
            std::int8_t* to = panels_.get() + o / kPanel * kPanel * 2 * pairs_ + o % kPanel * 2;
            scales_[o] = round_all(weight + o * inputs, inputs, 127.0f, [&](std::size_t i, int number) {
                to[i / 2 * 2 * kPanel + i % 2] = static_cast<std::int8_t>(number);
            });
        }
    }

    // What a weight is rounded to.
    double weight(std::size_t output, std::size_t input) const {
        const std::size_t panel = output / kPanel * kPanel * 2 * pairs_;
        return static_cast<double>(scales_[output]) * panels_.get()[panel + input / 2 * 2 * kPanel + output % kPanel * 2 + input % 2];
    }

    // What the largest number of a row becomes: the most that no sum can overflow with.
    float most() const {
        return static_cast<float>(std::min<std::size_t>(32767, std::numeric_limits<std::int32_t>::max() / (127 * std::max<std::size_t>(1, inputs_)) - 1));
    }

    // given: [rows, inputs]; y: [rows, outputs], to be written.
    void multiply(const float* given, std::size_t rows, float* y, std::size_t threads) const {
        if (rows == 0) return;
        const std::size_t blocks = (rows + sums_.size() - 1) / sums_.size();
        const auto begin = [&](std::size_t block) { return block * (rows / blocks) + std::min(block, rows % blocks); };
        thread_local std::vector<std::int32_t> turned;  // kept: new memory costs more than the turning
        thread_local std::vector<float> scales;
        turned.assign(rows * pairs_, 0);
        scales.resize(rows);
        for (std::size_t block = 0; block < blocks; ++block)
            for (std::size_t row = begin(block); row < begin(block + 1); ++row) {
                std::int32_t* to = turned.data() + begin(block) * pairs_ + (row - begin(block));
                const std::size_t height = begin(block + 1) - begin(block);
                scales[row] = round_all(given + row * inputs_, inputs_, most(), [&](std::size_t i, int number) {
                    to[i / 2 * height] |= static_cast<std::int32_t>(static_cast<std::uint32_t>(number & 0xffff) << (i % 2 * 16));
                });
            }
        const std::int32_t* x = turned.data();  // threads have such vectors of their own
        const float* row_scales = scales.data();
        const std::size_t chunk = std::max<std::size_t>(1, count_ / (threads * 4)), chunks = (count_ + chunk - 1) / chunk;
        Pool::instance().run(threads, chunks, [&](std::size_t part) {
            std::int32_t sums[kMostRows * kPanel];
            for (std::size_t panel = part * chunk; panel < std::min(count_, (part + 1) * chunk); ++panel)
                for (std::size_t block = 0; block < blocks; ++block) {
                    const std::size_t from = begin(block), height = begin(block + 1) - from;
                    sums_[height - 1](panels_.get() + panel * kPanel * 2 * pairs_, x + from * pairs_, pairs_, sums);
                    const std::size_t output = panel * kPanel, width = std::min(kPanel, outputs_ - output);
                    for (std::size_t row = 0; row < height; ++row)
                        for (std::size_t o = 0; o < width; ++o)
                            y[(from + row) * outputs_ + output + o] = static_cast<float>(sums[row * kPanel + o]) * (scales_[output + o] * row_scales[from + row]);
                }
        });
    }

  private:
    std::vector<PanelSums> sums_;
    std::size_t outputs_, inputs_, pairs_, count_;
    Memory<std::int8_t> panels_;
    std::vector<float> scales_;
};

}  // namespace latticebpd
