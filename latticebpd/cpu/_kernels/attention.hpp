// Attention of few columns to a cache, softmax(q k^T * scale + mask) v in float32.
//
// A column's result is the same bits wherever its keys lie and whatever other columns and keys, which it does not look at, there are:
// scores are sums over the dimensions in their order, one key to a lane, and the values of a column's keys are added one after the
// other in the order of their places.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "lanes.hpp"
#include "pool.hpp"

namespace latticebpd {

// Numbers [rows, heads, columns or places, size]: the strides of the first three, the last lie side by side.
struct Strided {
    const float* numbers;
    std::ptrdiff_t row, head, place;

    const float* at(std::size_t r, std::size_t h, std::size_t p) const {
        return numbers + static_cast<std::ptrdiff_t>(r) * row + static_cast<std::ptrdiff_t>(h) * head + static_cast<std::ptrdiff_t>(p) * place;
    }
};

// What columns look at.  kNone: at everything, kCausal: at places up to their own number, kVisible: bytes, kAdded: numbers that are
// added to scores; a very small one hides a key.
enum class Looks { kNone, kCausal, kVisible, kAdded };

struct Mask {
    Looks looks;
    const void* values;
    std::ptrdiff_t row, head, column, place;
};

// queries: [rows, heads, columns, size]; keys, values: [rows, groups, places, size], heads / groups heads to a group;
// output: [rows, columns, heads, size].
struct Attention {
    Strided queries, keys, values;
    Mask mask;
    float* output;
    std::size_t rows, heads, groups, columns, places, size;
    float scale;
};

constexpr std::size_t kColumnsOfTask = 16;

[[gnu::always_inline]] inline void exponentials(float* scores, float highest) {
    Lanes x = *reinterpret_cast<const Lanes*>(scores) - highest;
    exponential(x);
    *reinterpret_cast<Lanes*>(scores) = x;
}

// What a column adds to its scores, [places]; minus infinity where it does not look.
inline void added(const Attention& of, std::size_t row, std::size_t head, std::size_t column, float* to) {
    constexpr float kHidden = -std::numeric_limits<float>::infinity();
    const Mask& mask = of.mask;
    const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(row) * mask.row + static_cast<std::ptrdiff_t>(head) * mask.head +
                                  static_cast<std::ptrdiff_t>(column) * mask.column;
    switch (mask.looks) {
        case Looks::kNone: std::fill_n(to, of.places, 0.0f); break;
        case Looks::kCausal:
            for (std::size_t place = 0; place < of.places; ++place) to[place] = place <= column ? 0.0f : kHidden;
            break;
        case Looks::kVisible:
            for (std::size_t place = 0; place < of.places; ++place)
                to[place] = static_cast<const std::uint8_t*>(mask.values)[offset + static_cast<std::ptrdiff_t>(place) * mask.place] ? 0.0f : kHidden;
            break;
        case Looks::kAdded:
            for (std::size_t place = 0; place < of.places; ++place) {
                const float value = static_cast<const float*>(mask.values)[offset + static_cast<std::ptrdiff_t>(place) * mask.place];
                to[place] = value < -1e30f ? kHidden : value;
            }
    }
}

// Scores of 16 keys for `kCount` queries.  turned: [size, 16] numbers of the keys.
template <int kCount>
[[gnu::always_inline]] inline void scores_of(const float* const* queries, const float* turned, std::size_t size, float scale,
                                             const float* const* biases, float* const* to) {
    Lanes sums[kCount] = {};
    for (std::size_t d = 0; d < size; ++d) {
        const Lanes keys = *reinterpret_cast<const Lanes*>(turned + d * kLanes);
#pragma GCC unroll 8
        for (int q = 0; q < kCount; ++q) sums[q] += keys * queries[q][d];
    }
    for (int q = 0; q < kCount; ++q)
        *reinterpret_cast<Lanes*>(to[q]) = sums[q] * scale + *reinterpret_cast<const Lanes*>(biases[q]);
}

// 64 numbers (or, where the size is no multiple, 16) of the weighted values of `kCount` queries.
template <int kCount, int kVectors>
[[gnu::always_inline]] inline void values_of(const std::vector<std::uint32_t>& seen, const float* values, std::ptrdiff_t stride,
                                             const float* const* weights, float* const* to) {
    Lanes sums[kCount][kVectors] = {};
    float total[kCount] = {};
    for (const std::uint32_t place : seen) {
        const Lanes* value = reinterpret_cast<const Lanes*>(values + static_cast<std::ptrdiff_t>(place) * stride);
#pragma GCC unroll 4
        for (int q = 0; q < kCount; ++q) {
            const float weight = weights[q][place];
            total[q] += weight;
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) sums[q][v] += value[v] * weight;
        }
    }
    for (int q = 0; q < kCount; ++q)
        for (int v = 0; v < kVectors; ++v)
            reinterpret_cast<Lanes*>(to[q])[v] = total[q] != 0.0f ? sums[q][v] / total[q] : Lanes{};
}

// One group of heads of one row, for a few columns.
[[gnu::always_inline]] inline void attend_task(const Attention& of, std::size_t row, std::size_t group, std::size_t begin, std::size_t end) {
    constexpr float kHidden = -std::numeric_limits<float>::infinity();
    const std::size_t heads = of.heads / of.groups, width = (of.places + kLanes - 1) / kLanes * kLanes;
    const std::size_t count = (end - begin) * heads, blocks = width / kLanes;
    thread_local std::vector<float> scratch;
    scratch.resize(2 * count * width + of.size * kLanes);
    float *biases = scratch.data(), *scores = biases + count * width, *turned = scores + count * width;
    std::vector<const float*> queries(count), bias(count);
    std::vector<float*> to(count), results(count);
    for (std::size_t i = 0; i < count; ++i) {  // the heads of a column lie together
        const std::size_t column = begin + i / heads, head = group * heads + i % heads;
        queries[i] = of.queries.at(row, head, column);
        results[i] = of.output + ((row * of.columns + column) * of.heads + head) * of.size;
        if (i % heads == 0 || of.mask.head != 0) {
            bias[i] = biases + i * width;
            added(of, row, head, column, biases + i * width);
            std::fill(biases + i * width + of.places, biases + (i + 1) * width, kHidden);
        } else {
            bias[i] = bias[i - 1];
        }
    }
    std::vector<std::uint32_t> seen;  // places that any column looks at
    for (std::size_t place = 0; place < of.places; ++place)
        for (std::size_t i = 0; i < count; i += of.mask.head != 0 ? 1 : heads)
            if (bias[i][place] > kHidden) {
                seen.push_back(static_cast<std::uint32_t>(place));
                break;
            }
    std::size_t next = 0;
    for (std::size_t block = 0; block < blocks; ++block) {
        const std::size_t first = block * kLanes;
        const bool any = next < seen.size() && seen[next] < first + kLanes;
        while (next < seen.size() && seen[next] < first + kLanes) ++next;
        if (!any) {
            for (std::size_t i = 0; i < count; ++i) std::fill_n(scores + i * width + first, kLanes, kHidden);
            continue;
        }
        const float* keys[kLanes];
        for (std::size_t lane = 0; lane < kLanes; ++lane) keys[lane] = of.keys.at(row, group, std::min(first + lane, of.places - 1));
        for (std::size_t d = 0; d < of.size; d += kLanes) {
            turn(keys, turned + d * kLanes);
            for (const float*& key : keys) key += kLanes;
        }
        for (std::size_t i = 0; i < count; ++i) to[i] = scores + i * width + first;
        const float* biases_here[8];
        std::size_t i = 0;
        for (; i < count;) {
            const std::size_t together = count - i >= 8 ? 8 : count - i >= 4 ? 4 : 1;
            for (std::size_t j = 0; j < together; ++j) biases_here[j] = bias[i + j] + first;
            if (together == 8) scores_of<8>(&queries[i], turned, of.size, of.scale, biases_here, &to[i]);
            else if (together == 4) scores_of<4>(&queries[i], turned, of.size, of.scale, biases_here, &to[i]);
            else scores_of<1>(&queries[i], turned, of.size, of.scale, biases_here, &to[i]);
            i += together;
        }
    }
    for (std::size_t i = 0; i < count; ++i) {
        float* own = scores + i * width;
        Lanes largest = Lanes{} + kHidden;
        for (std::size_t place = 0; place < width; place += kLanes) {
            Lanes& some = *reinterpret_cast<Lanes*>(own + place);
            const Lanes add = *reinterpret_cast<const Lanes*>(bias[i] + place);
            some = add == kHidden ? add : some;  // whatever stands there, not a number perhaps
            largest = some > largest ? some : largest;
        }
        float highest = kHidden;
        for (std::size_t lane = 0; lane < kLanes; ++lane) highest = std::max(highest, largest[lane]);
        if (highest == kHidden) highest = 0.0f;
        for (std::size_t place = 0; place < width; place += kLanes) exponentials(own + place, highest);
        to[i] = own;
    }
    const float* values = of.values.at(row, group, 0);
    for (std::size_t d = 0; d < of.size;) {
        const std::size_t wide = of.size - d >= 4 * kLanes ? 4 : 1;
        for (std::size_t i = 0; i < count;) {
            float* results_here[4];
            const std::size_t together = count - i >= 4 ? 4 : count - i == 3 ? 3 : 1;
            for (std::size_t j = 0; j < together; ++j) results_here[j] = results[i + j] + d;
            const float* const* weights = const_cast<const float* const*>(&to[i]);
            if (wide == 4) {
                if (together == 4) values_of<4, 4>(seen, values + d, of.values.place, weights, results_here);
                else if (together == 3) values_of<3, 4>(seen, values + d, of.values.place, weights, results_here);
                else values_of<1, 4>(seen, values + d, of.values.place, weights, results_here);
            } else {
                for (std::size_t j = 0; j < together; ++j) values_of<1, 1>(seen, values + d, of.values.place, weights + j, results_here + j);
            }
            i += together;
        }
        d += wide * kLanes;
    }
}

using Task = void (*)(const Attention&, std::size_t, std::size_t, std::size_t, std::size_t);

inline void plain_task(const Attention& of, std::size_t row, std::size_t group, std::size_t begin, std::size_t end) {
    attend_task(of, row, group, begin, end);
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] inline void avx2_task(const Attention& of, std::size_t row, std::size_t group, std::size_t begin, std::size_t end) {
    attend_task(of, row, group, begin, end);
}
[[gnu::target("avx512f,avx2,fma")]] inline void avx512_task(const Attention& of, std::size_t row, std::size_t group, std::size_t begin,
                                                           std::size_t end) {
    attend_task(of, row, group, begin, end);
}
#endif

inline std::vector<Task> tasks() {
    std::vector<Task> found;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma")) found.push_back(avx512_task);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(avx2_task);
#endif
    found.push_back(plain_task);
    return found;
}

inline void attend(const Attention& of, std::size_t threads, std::size_t kind) {
    const Task task = tasks().at(kind);
    const std::size_t parts = (of.columns + kColumnsOfTask - 1) / kColumnsOfTask, count = of.rows * of.groups * parts;
    Pool::instance().run(threads, count, [&](std::size_t i) {
        const std::size_t part = i % parts, group = i / parts % of.groups, row = i / parts / of.groups;
        task(of, row, group, part * of.columns / parts, (part + 1) * of.columns / parts);
    });
}

}  // namespace latticebpd
