// Formats of weights: GGUF's blocks, and how they lie in the engine's panels.
//
// A quantized weight is s q + m: q an integer of few bits, s and m of a group of 32 inputs (q6_k: of 16). A panel has
// 16 outputs and lies group after group, so that it is read from one end to the other: first a group's weights, four
// inputs of an output next to each other, as multiply-add instructions take them, then its scales. The layout is
// lossless; sizes are rounded up to bytes.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace engine {

constexpr std::size_t kGroup = 32, kOutputs = 16;

// By the numbers that GGUF files have for them; kUpper is the engine's own, the upper bits of kQ80.
enum class Type {
    kF32 = 0,
    kF16 = 1,
    kQ40 = 2,
    kQ41 = 3,
    kQ50 = 6,
    kQ51 = 7,
    kQ80 = 8,
    kQ4K = 12,
    kQ5K = 13,
    kQ6K = 14,
    kBf16 = 30,
    kUpper = 1000
};

// What a quantized format consists of.
// bits: of q.  offset: subtracted from q.  minima: whether there is an m.  is_k_quant: whether s and m are products of
// a float16 number and a byte.  parts: scales of a group.  block, bytes: inputs and bytes of a block in a file.
struct Format {
    std::size_t bits;
    int offset;
    bool minima, is_k_quant;
    std::size_t parts, block, bytes;

    // Of a panel's group.
    [[gnu::always_inline]] constexpr std::size_t weight_bytes() const { return bits * kGroup * kOutputs / 8; }
    [[gnu::always_inline]] constexpr std::size_t scale_bytes() const {
        return kOutputs * (is_k_quant ? 2 + parts + 3 * minima : 2 + 2 * minima);
    }
    [[gnu::always_inline]] constexpr std::size_t group_bytes() const { return weight_bytes() + scale_bytes(); }
};

[[noreturn]] void refuse_type(Type type);

[[gnu::always_inline]] constexpr Format format_of(Type type) {
    switch (type) {
        case Type::kQ40: return {4, 8, false, false, 1, 32, 18};
        case Type::kQ41: return {4, 0, true, false, 1, 32, 20};
        case Type::kQ50: return {5, 16, false, false, 1, 32, 22};
        case Type::kQ51: return {5, 0, true, false, 1, 32, 24};
        case Type::kUpper: return {6, 32, false, false, 1, 32, 26};
        case Type::kQ80: return {8, 128, false, false, 1, 32, 34};
        case Type::kQ4K: return {4, 0, true, true, 1, 256, 144};
        case Type::kQ5K: return {5, 0, true, true, 1, 256, 176};
        case Type::kQ6K: return {6, 32, false, true, 2, 256, 210};
        default: refuse_type(type);
    }
}

[[gnu::always_inline]] constexpr bool is_quantized(Type type) {
    return type != Type::kF32 && type != Type::kF16 && type != Type::kBf16;
}

// The type that a file has a number for.
Type type_of(int number);

// Inputs and bytes of a block in a file.
struct Block {
    std::size_t inputs, bytes;
};
[[gnu::always_inline]] constexpr Block block_of(Type type) {
    if (!is_quantized(type)) return {1, type == Type::kF32 ? std::size_t{4} : std::size_t{2}};
    return {format_of(type).block, format_of(type).bytes};
}

// float16 to float32, subnormal numbers too.
inline float from_half(std::uint16_t bits) {
    const bool special = (bits & 0x7c00) == 0x7c00;  // infinite or NaN
    const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fff) << 13 | (special ? 0x7f800000 : 0);
    auto number = std::bit_cast<float>(magnitude);
    if (!special) number *= 0x1p112f;
    return bits & 0x8000 ? -number : number;
}

// float32 to float16, to the nearest, halves to even ones; infinite where too large.
inline std::uint16_t to_half(float number) {
    const auto bits = std::bit_cast<std::uint32_t>(number);
    const float magnitude = std::abs(number);
    std::uint32_t half = 0x7c00;
    if (magnitude < 0x1p-14f) half = static_cast<std::uint32_t>(std::lrint(magnitude * 0x1p24f));
    else if (magnitude < 65520.0f) half = (((bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1)) >> 13) - (112 << 10);
    else if (magnitude != magnitude) half = 0x7e00 | (bits >> 13 & 0x3ff);
    return static_cast<std::uint16_t>(half | (bits >> 16 & 0x8000));
}

// A number that is not quantized.
inline float read_number(Type type, const std::uint8_t* bytes) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, bytes, type == Type::kF32 ? 4 : 2);
    return type == Type::kF16 ? from_half(static_cast<std::uint16_t>(bits))
                              : std::bit_cast<float>(type == Type::kF32 ? bits : bits << 16);
}

// A group of one output as it is in a file. q: 0 .. 2^bits - 1.  half, minimum: float16.  bytes: of K-quants, the
// scales of the parts, then the minimum's.
struct Group {
    std::uint8_t q[kGroup];
    std::uint16_t half, minimum;
    std::uint8_t bytes[2];
};

// Group `index` of a row of blocks.
inline Group read_group(Type type, const std::uint8_t* row, std::size_t index) {
    const Format format = format_of(type);
    const std::uint8_t* block = row + index * kGroup / format.block * format.bytes;
    const std::size_t sub = index % (format.block / kGroup);
    const auto half = [&](std::size_t at) { return static_cast<std::uint16_t>(block[at] | block[at + 1] << 8); };
    Group group{};
    group.half = half(type == Type::kQ6K ? 208 : 0);
    if (format.minima) group.minimum = half(2);
    if (type == Type::kQ80) {
        for (std::size_t i = 0; i < kGroup; ++i) group.q[i] = static_cast<std::uint8_t>(block[2 + i] + 128);
    } else if (type == Type::kQ6K) {
        const std::uint8_t *low = block + 64 * (sub / 4) + 32 * (sub % 2), *high = block + 128 + 32 * (sub / 4);
        for (std::size_t i = 0; i < kGroup; ++i)
            group.q[i] =
                static_cast<std::uint8_t>((low[i] >> 4 * (sub % 4 / 2) & 15) | (high[i] >> 2 * (sub % 4) & 3) << 4);
        std::memcpy(group.bytes, block + 192 + 2 * sub, 2);
    } else if (format.is_k_quant) {
        const std::uint8_t *s = block + 4, *codes = block + format.bytes - 128 + 32 * (sub / 2);
        group.bytes[0] = static_cast<std::uint8_t>(sub < 4 ? s[sub] & 63 : (s[sub + 4] & 15) | s[sub - 4] >> 6 << 4);
        group.bytes[1] = static_cast<std::uint8_t>(sub < 4 ? s[sub + 4] & 63 : s[sub + 4] >> 4 | s[sub] >> 6 << 4);
        for (std::size_t i = 0; i < kGroup; ++i) {
            group.q[i] = codes[i] >> 4 * (sub % 2) & 15;
            if (format.bits == 5) group.q[i] |= static_cast<std::uint8_t>((block[16 + i] >> sub & 1) << 4);
        }
    } else {
        const std::uint8_t *codes = block + format.bytes - 16, *high = codes - 4;
        for (std::size_t i = 0; i < kGroup; ++i) {
            group.q[i] = codes[i % 16] >> 4 * (i / 16) & 15;
            if (format.bits == 5) group.q[i] |= static_cast<std::uint8_t>((high[i / 8] >> i % 8 & 1) << 4);
        }
    }
    return group;
}

// Where q of an output's input lies: four inputs are one column of 64 bytes. The low four bits of columns 0 .. 3 share
// bytes with those of columns 4 .. 7; then come the fifth and sixth bits, so many of each column in a byte.
struct WeightIndex {
    std::size_t column, byte;
    WeightIndex(std::size_t output, std::size_t input) : column(input / 4), byte(output * 4 + input % 4) {}
};

inline void write_q(const Format& format, std::uint8_t* weights, WeightIndex index, std::uint8_t q) {
    if (format.bits == 8) {
        weights[index.column * 64 + index.byte] = q;
        return;
    }
    weights[index.column % 4 * 64 + index.byte] |= static_cast<std::uint8_t>((q & 15) << 4 * (index.column / 4));
    const std::size_t high = format.bits - 4;
    if (high != 0) {
        const std::size_t shift = 4 - high;  // a vector has 8 or 4 columns; divisions would take most of the time
        weights[(4 + (index.column >> shift)) * 64 + index.byte] |=
            static_cast<std::uint8_t>(q >> 4 << high * (index.column & ((1u << shift) - 1)));
    }
}

inline std::uint8_t read_q(const Format& format, const std::uint8_t* weights, WeightIndex index) {
    if (format.bits == 8) return weights[index.column * 64 + index.byte];
    unsigned q = weights[index.column % 4 * 64 + index.byte] >> 4 * (index.column / 4) & 15;
    const std::size_t high = format.bits - 4;
    if (high != 0) {
        const std::size_t shift = 4 - high;
        q |= (weights[(4 + (index.column >> shift)) * 64 + index.byte] >> high * (index.column & ((1u << shift) - 1)) &
              ((1u << high) - 1))
             << 4;
    }
    return static_cast<std::uint8_t>(q);
}

// Scales of a panel's group: float16 numbers [16], minima's [16], bytes [parts + minima, 16].
inline void write_scales(const Format& format, std::uint8_t* scales, std::size_t output, const Group& group) {
    std::memcpy(scales + 2 * output, &group.half, 2);
    if (format.minima) std::memcpy(scales + 2 * (kOutputs + output), &group.minimum, 2);
    if (!format.is_k_quant) return;
    std::uint8_t* bytes = scales + 2 * kOutputs * (1 + format.minima);
    for (std::size_t i = 0; i < 2; ++i)
        if (i < format.parts + format.minima) bytes[i * kOutputs + output] = group.bytes[i];
}

// s of a part of a group and m, of one output.
inline float read_scale(const Format& format, const std::uint8_t* scales, std::size_t output, std::size_t part) {
    std::uint16_t half;
    std::memcpy(&half, scales + 2 * output, 2);
    if (!format.is_k_quant) return from_half(half);
    const std::uint8_t byte = scales[2 * kOutputs * (1 + format.minima) + part * kOutputs + output];
    return from_half(half) * static_cast<float>(format.minima ? int{byte} : int{static_cast<std::int8_t>(byte)});
}
inline float read_minimum(const Format& format, const std::uint8_t* scales, std::size_t output) {
    if (!format.minima) return 0.0f;
    std::uint16_t half;
    std::memcpy(&half, scales + 2 * (kOutputs + output), 2);
    return format.is_k_quant ? -(from_half(half) * static_cast<float>(scales[5 * kOutputs + output])) : from_half(half);
}

// A weight of a panel's group.
inline float read_weight(const Format& format, const std::uint8_t* scales, std::size_t output, std::size_t input,
                         std::uint8_t q) {
    const float scale = read_scale(format, scales, output, input * format.parts / kGroup);
    const float weight = scale * static_cast<float>(q - format.offset);
    return format.minima ? weight + read_minimum(format, scales, output) : weight;
}

// A row of a file's blocks in float32.
inline void read_row(Type type, const std::uint8_t* row, std::size_t inputs, float* to) {
    if (!is_quantized(type)) {
        for (std::size_t i = 0; i < inputs; ++i) to[i] = read_number(type, row + i * block_of(type).bytes);
        return;
    }
    const Format format = format_of(type);
    std::uint8_t scales[8 * kOutputs];
    for (std::size_t i = 0; i < inputs; i += kGroup) {
        const Group group = read_group(type, row, i / kGroup);
        write_scales(format, scales, 0, group);
        for (std::size_t n = 0; n < kGroup; ++n) to[i + n] = read_weight(format, scales, 0, n, group.q[n]);
    }
}

}  // namespace engine
