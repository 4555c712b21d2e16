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

}  // namespace latticebpd
