// Vectors of 16 floats, which the compiler maps to the registers that the processor has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace engine {

constexpr std::size_t kLanes = 16;
typedef float Lanes __attribute__((vector_size(64), aligned(4), may_alias));
typedef std::int32_t IntLanes __attribute__((vector_size(64)));

// e^x for x <= 0; 0 below -87. Cephes' polynomial, within 2 units in the last place. Numbers: a vector of floats, by
// value: a template's argument is the type without its attributes, so that a reference would expect aligned memory.
template <typename Numbers>
[[gnu::always_inline]] inline Numbers exponential(Numbers x) {
    const auto underflow = x < -87.0f;
    typedef decltype(x < x) Whole;
    x = underflow ? Numbers{} - 87.0f : x;
    const Numbers shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    const Numbers r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    Numbers p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const Whole bits = (__builtin_convertvector(n, Whole) + 127) << 23;
    Numbers power;
    __builtin_memcpy(&power, &bits, sizeof power);
    return underflow ? Numbers{} : p * power;
}

// silu(x) = x / (1 + e^-x), computed from e^-|x|, which never overflows.
template <typename Numbers>
[[gnu::always_inline]] inline Numbers silu(Numbers x) {
    const Numbers decay = exponential(x > 0.0f ? -x : x);
    return x * (x > 0.0f ? Numbers{} + 1.0f : decay) / (decay + 1.0f);
}

}  // namespace engine
