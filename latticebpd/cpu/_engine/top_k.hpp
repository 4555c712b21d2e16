// The k largest of many numbers and their log-sum-exp: logits to the arcs of a slot.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "instruction_sets.hpp"
#include "simd_lanes.hpp"

namespace engine {

// numbers: [rows, count]; values, indices: [rows, k] the largest of each row, largest first, equal ones by lower index;
// log_sums: [rows], ln sum e^number. Where a log-sum is not finite, values are NaN.
//
// The k-th largest of group maxima is at most the k-th largest number: only groups that reach it are searched.
struct TopK {
    const float* numbers;
    std::size_t count, k;
    float* values;
    std::int32_t* indices;
    float* log_sums;

    struct Entry {
        float value;
        std::int32_t index;
        bool operator<(const Entry& other) const {
            return value != other.value ? value > other.value : index < other.index;
        }
    };

    [[gnu::always_inline]] void row(std::size_t number) const {
        constexpr std::size_t kBlock = 32 * kLanes;  // a group is one lane of a block
        constexpr float kInfinity = std::numeric_limits<float>::infinity();
        const float* const x = numbers + number * count;
        const std::size_t blocks = count / kBlock, grouped = blocks * kBlock;
        thread_local std::vector<float> maxima, ordered;  // kept: an allocation costs more than filling it
        thread_local std::vector<Entry> candidates;
        maxima.resize(blocks * kLanes);
        float top = -kInfinity;
        for (std::size_t block = 0; block < blocks; ++block) {
            Lanes most = lanes(x + block * kBlock);
            for (std::size_t i = kLanes; i < kBlock; i += kLanes) {
                const Lanes& some = lanes(x + block * kBlock + i);
                most = some > most ? some : most;
            }
            lanes(&maxima[block * kLanes]) = most;
        }
        for (const float each : maxima) top = std::max(top, each);
        for (std::size_t i = grouped; i < count; ++i) top = std::max(top, x[i]);

        Lanes sums = {};
        for (std::size_t i = 0; i < grouped; i += kLanes) {
            Lanes part = lanes(x + i) - top;
            part = exponential(part);
            sums += part;
        }
        double total = 0;
        for (std::size_t lane = 0; lane < kLanes; ++lane) total += static_cast<double>(sums[lane]);
        for (std::size_t i = grouped; i < count; ++i) total += std::exp(static_cast<double>(x[i] - top));
        log_sums[number] = static_cast<float>(static_cast<double>(top) + std::log(total));
        if (!std::isfinite(log_sums[number])) {
            std::fill_n(indices + number * k, k, 0);
            std::fill_n(values + number * k, k, std::numeric_limits<float>::quiet_NaN());
            return;
        }

        float least = -kInfinity;
        if (k <= maxima.size()) {
            ordered = maxima;
            const auto last = ordered.begin() + static_cast<std::ptrdiff_t>(k - 1);
            std::nth_element(ordered.begin(), last, ordered.end(), [](float a, float b) { return a > b; });
            least = *last;
        }
        candidates.clear();
        const auto add = [&](std::size_t i) {
            if (x[i] >= least) candidates.push_back({x[i], static_cast<std::int32_t>(i)});
        };
        for (std::size_t group = 0; group < maxima.size(); ++group)
            if (maxima[group] >= least)
                for (std::size_t i = 0; i < kBlock; i += kLanes) add(group / kLanes * kBlock + group % kLanes + i);
        for (std::size_t i = grouped; i < count; ++i) add(i);
        std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(k), candidates.end());
        for (std::size_t i = 0; i < k; ++i) {
            values[number * k + i] = candidates[i].value;
            indices[number * k + i] = candidates[i].index;
        }
    }
};

}  // namespace engine
