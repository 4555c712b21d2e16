// Vectors of 16 numbers, whatever the processor has for them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace latticebpd {

constexpr std::size_t kLanes = 16;
typedef float Lanes __attribute__((vector_size(64), aligned(4), may_alias));
typedef std::int32_t Whole __attribute__((vector_size(64)));

// e^x for x <= 0; 0 for what is hidden.  Cephes' polynomial, within 2 units in the last place.
[[gnu::always_inline]] inline void exponential(Lanes& x) {
    const Whole hidden = x < -87.0f;
    x = hidden ? Lanes{} - 87.0f : x;
    const Lanes shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    const Lanes r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    Lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const Whole bits = (__builtin_convertvector(n, Whole) + 127) << 23;
    p *= reinterpret_cast<const Lanes&>(bits);
    x = hidden ? Lanes{} : p;
}

// 16 numbers at each of 16 addresses, turned: to[d * 16 + i] = from[i][d].  Four rounds, each of which lays two halves one in the other.
[[gnu::always_inline]] inline void turn(const float* const* from, float* to) {
    Lanes rows[kLanes], next[kLanes];
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kLanes; ++i) rows[i] = *reinterpret_cast<const Lanes*>(from[i]);
#pragma GCC unroll 4
    for (int round = 0; round < 4; ++round) {
#pragma GCC unroll 8
        for (std::size_t i = 0; i < kLanes / 2; ++i) {
            next[2 * i] = __builtin_shufflevector(rows[i], rows[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            next[2 * i + 1] = __builtin_shufflevector(rows[i], rows[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
#pragma GCC unroll 16
        for (std::size_t i = 0; i < kLanes; ++i) rows[i] = next[i];
    }
#pragma GCC unroll 16
    for (std::size_t d = 0; d < kLanes; ++d) *reinterpret_cast<Lanes*>(to + d * kLanes) = rows[d];
}

}  // namespace latticebpd
