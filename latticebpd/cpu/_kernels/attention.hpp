// Attention of the few columns (tokens) of a pass to a cache, softmax(q k^T * scale + mask) v in float32.
//
// Results are batch-invariant, and depend neither on where keys lie nor on keys that a column does not see: scores are
// sums over the dimensions in their order, one key to a lane; values of visible keys are added in the order of keys.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "instruction_sets.hpp"
#include "simd_lanes.hpp"

namespace cpu_kernels {

// [rows, heads, columns or keys, size] numbers with strides of the first three dimensions; the last is contiguous.
struct Strided {
    const float* numbers;
    std::ptrdiff_t row, head, column;

    const float* at(std::size_t r, std::size_t h, std::size_t c) const {
        return numbers + static_cast<std::ptrdiff_t>(r) * row + static_cast<std::ptrdiff_t>(h) * head +
               static_cast<std::ptrdiff_t>(c) * column;
    }
};

// kNone: all keys are visible; kCausal: keys with index <= column index; kVisible: bytes, nonzero where a key is
// visible; kAdded: numbers added to scores, hidden below -1e30.
enum class MaskKind { kNone, kCausal, kVisible, kAdded };

// [rows, heads, columns, keys] with strides, in elements.
struct MaskView {
    MaskKind kind;
    const void* values;
    std::ptrdiff_t row, head, column, key;
};

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// queries: [rows, heads, columns, size]; keys, values: [rows, groups, num_keys, size], heads / groups heads to a group;
// output: [rows, columns, heads, size]. As a row operation: a group of heads and at most 16 columns of a row at a time.
struct Attention {
    Strided queries, keys, values;
    MaskView mask;
    float* output;
    std::size_t rows, heads, groups, columns, num_keys, size;
    float scale;

    std::size_t parts() const { return (columns + 15) / 16; }

    [[gnu::always_inline]] void row(std::size_t task) const {
        const std::size_t part = task % parts(), group = task / parts() % groups, row = task / parts() / groups;
        attend(row, group, part * columns / parts(), (part + 1) * columns / parts());
    }

    // What a column adds to its scores, [num_keys].
    void biases_of(std::size_t row, std::size_t head, std::size_t column, float* to) const {
        const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(row) * mask.row +
                                     static_cast<std::ptrdiff_t>(head) * mask.head +
                                     static_cast<std::ptrdiff_t>(column) * mask.column;
        const auto offset = [&](std::size_t key) { return first + static_cast<std::ptrdiff_t>(key) * mask.key; };
        switch (mask.kind) {
            case MaskKind::kNone: std::fill_n(to, num_keys, 0.0f); break;
            case MaskKind::kCausal:
                for (std::size_t key = 0; key < num_keys; ++key) to[key] = key <= column ? 0.0f : kHidden;
                break;
            case MaskKind::kVisible:
                for (std::size_t key = 0; key < num_keys; ++key)
                    to[key] = static_cast<const std::uint8_t*>(mask.values)[offset(key)] ? 0.0f : kHidden;
                break;
            case MaskKind::kAdded:
                for (std::size_t key = 0; key < num_keys; ++key) {
                    const float value = static_cast<const float*>(mask.values)[offset(key)];
                    to[key] = value < -1e30f ? kHidden : value;
                }
        }
    }

    // Scores of 16 keys, transposed: [size, 16], for `kCount` queries.
    template <int kCount>
    [[gnu::always_inline]] void score(const float* const* query, const float* transposed, const float* const* bias,
                                      std::size_t key, float* const* to) const {
        Lanes sums[kCount] = {};
        for (std::size_t d = 0; d < size; ++d) {
            const Lanes& dimension = lanes(transposed + d * kLanes);
#pragma GCC unroll 8
            for (int q = 0; q < kCount; ++q) sums[q] += dimension * query[q][d];
        }
        for (int q = 0; q < kCount; ++q) lanes(to[q] + key) = sums[q] * scale + lanes(bias[q] + key);
    }

    // The weighted mean of kVectors * 16 dimensions of the values, from `first` on, for `kCount` queries.
    template <int kCount, int kVectors>
    [[gnu::always_inline]] void mean(const std::vector<std::uint32_t>& visible, const float* first,
                                     float* const* weights, float* const* to, std::size_t d) const {
        Lanes sums[kCount][kVectors] = {};
        float total[kCount] = {};
        for (const std::uint32_t key : visible) {
            const float* value = first + static_cast<std::ptrdiff_t>(key) * values.column + d;
#pragma GCC unroll 4
            for (int q = 0; q < kCount; ++q) {
                const float weight = weights[q][key];
                total[q] += weight;
#pragma GCC unroll 4
                for (int v = 0; v < kVectors; ++v) sums[q][v] += lanes(value + v * kLanes) * weight;
            }
        }
        for (int q = 0; q < kCount; ++q)
            for (int v = 0; v < kVectors; ++v)
                lanes(to[q] + d + v * kLanes) = total[q] != 0.0f ? sums[q][v] / total[q] : Lanes{};
    }

    // Scores to unnormalised softmax weights, in place; whatever a hidden key's score is, NaN perhaps, its weight is 0.
    [[gnu::always_inline]] void exponentials(float* scores, const float* bias, std::size_t width) const {
        Lanes largest = Lanes{} + kHidden;
        for (std::size_t key = 0; key < width; key += kLanes) {
            Lanes& some = lanes(scores + key);
            const Lanes& add = lanes(bias + key);
            some = add == kHidden ? add : some;
            largest = some > largest ? some : largest;
        }
        float highest = max_lane(largest);
        if (highest == kHidden) highest = 0.0f;
        for (std::size_t key = 0; key < width; key += kLanes) {
            Lanes x = lanes(scores + key) - highest;
            exponential(x);
            lanes(scores + key) = x;
        }
    }

    // The columns begin .. end - 1 of a row, for one group of heads; queries are ordered by column, then head.
    [[gnu::always_inline]] void attend(std::size_t row, std::size_t group, std::size_t begin, std::size_t end) const {
        const std::size_t own_heads = heads / groups, width = (num_keys + kLanes - 1) / kLanes * kLanes;
        const std::size_t count = (end - begin) * own_heads, bias_step = mask.head != 0 ? 1 : own_heads;
        thread_local std::vector<float> scratch;
        scratch.resize(2 * count * width + size * kLanes);
        float *biases = scratch.data(), *transposed = biases + 2 * count * width;
        std::vector<const float*> query(count), bias(count);
        std::vector<float*> scores(count), to(count);
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t column = begin + i / own_heads, head = group * own_heads + i % own_heads;
            query[i] = queries.at(row, head, column);
            to[i] = output + ((row * columns + column) * heads + head) * size;
            scores[i] = biases + (count + i) * width;
            bias[i] = i % bias_step == 0 ? biases + i * width : bias[i - 1];
            if (i % bias_step != 0) continue;
            biases_of(row, head, column, biases + i * width);
            std::fill(biases + i * width + num_keys, biases + (i + 1) * width, kHidden);
        }
        std::vector<std::uint32_t> visible;  // to any of the columns
        for (std::size_t key = 0; key < num_keys; ++key)
            for (std::size_t i = 0; i < count; i += bias_step)
                if (bias[i][key] > kHidden) {
                    visible.push_back(static_cast<std::uint32_t>(key));
                    break;
                }
        auto next = visible.begin();
        for (std::size_t key = 0; key < width; key += kLanes) {
            const auto first = next;
            while (next != visible.end() && *next < key + kLanes) ++next;
            if (next == first) {
                for (std::size_t i = 0; i < count; ++i) lanes(scores[i] + key) = Lanes{} + kHidden;
                continue;
            }
            const float* from[kLanes];
            for (std::size_t i = 0; i < kLanes; ++i) from[i] = keys.at(row, group, std::min(key + i, num_keys - 1));
            for (std::size_t d = 0; d < size; d += kLanes) {
                transpose16(from, transposed + d * kLanes);
                for (const float*& each : from) each += kLanes;
            }
            for (std::size_t i = 0; i < count;) {
                const std::size_t together = count - i >= 8 ? 8 : count - i >= 4 ? 4 : 1;
                if (together == 8) score<8>(&query[i], transposed, &bias[i], key, &scores[i]);
                else if (together == 4) score<4>(&query[i], transposed, &bias[i], key, &scores[i]);
                else score<1>(&query[i], transposed, &bias[i], key, &scores[i]);
                i += together;
            }
        }
        for (std::size_t i = 0; i < count; ++i) exponentials(scores[i], bias[i], width);
        const float* first = values.at(row, group, 0);
        for (std::size_t d = 0; d < size;) {
            const bool wide = size - d >= 4 * kLanes;
            for (std::size_t i = 0; i < count;) {
                const std::size_t together = !wide ? 1 : count - i >= 4 ? 4 : count - i == 3 ? 3 : 1;
                if (!wide) mean<1, 1>(visible, first, &scores[i], &to[i], d);
                else if (together == 4) mean<4, 4>(visible, first, &scores[i], &to[i], d);
                else if (together == 3) mean<3, 4>(visible, first, &scores[i], &to[i], d);
                else mean<1, 4>(visible, first, &scores[i], &to[i], d);
                i += together;
            }
            d += wide ? 4 * kLanes : kLanes;
        }
    }
};

inline void attend(const Attention& attention, std::size_t threads, Isa isa) {
    for_each_row(attention, attention.rows * attention.groups * attention.parts(), threads, isa, 1);
}

}  // namespace cpu_kernels
