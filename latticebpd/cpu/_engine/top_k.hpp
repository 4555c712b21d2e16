// The k largest of many numbers and their log-sum-exp: logits to the arcs of a slot.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "workers.hpp"

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

    void row(const Operations& operations, std::size_t number) const {
        constexpr std::size_t kLanes = 16, kBlock = 32 * kLanes;  // a group is one lane of a block
        const float* const x = numbers + number * count;
        const std::size_t blocks = count / kBlock, grouped = blocks * kBlock;
        thread_local std::vector<float> maxima, ordered;  // kept: an allocation costs more than filling it
        thread_local std::vector<std::pair<float, std::int32_t>> candidates;  // -number, index: the best comes first
        log_sums[number] = operations.log_sum(x, count);
        if (!std::isfinite(log_sums[number])) {
            std::fill_n(indices + number * k, k, 0);
            std::fill_n(values + number * k, k, std::numeric_limits<float>::quiet_NaN());
            return;
        }

        maxima.resize(blocks * kLanes);
        operations.maxima(x, blocks, maxima.data());
        float least = -std::numeric_limits<float>::infinity();
        if (k <= maxima.size()) {
            ordered = maxima;
            const auto last = ordered.begin() + static_cast<std::ptrdiff_t>(k - 1);
            std::nth_element(ordered.begin(), last, ordered.end(), [](float a, float b) { return a > b; });
            least = *last;
        }
        candidates.clear();
        const auto add = [&](std::size_t i) {
            if (x[i] >= least) candidates.emplace_back(-x[i], static_cast<std::int32_t>(i));
        };
        for (std::size_t group = 0; group < maxima.size(); ++group)
            if (maxima[group] >= least)
                for (std::size_t i = 0; i < kBlock; i += kLanes) add(group / kLanes * kBlock + group % kLanes + i);
        for (std::size_t i = grouped; i < count; ++i) add(i);
        std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(k), candidates.end());
        for (std::size_t i = 0; i < k; ++i) {
            values[number * k + i] = -candidates[i].first;
            indices[number * k + i] = candidates[i].second;
        }
    }

    void rows(std::size_t size, const Workers& workers) const {
        workers.each(size, [&](std::size_t number) { row(workers.operations, number); });
    }
};

}  // namespace engine
