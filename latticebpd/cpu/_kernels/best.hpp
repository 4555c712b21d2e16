// The largest of many numbers, and the logarithm of the sum of their exponentials: what a lattice keeps of logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "lanes.hpp"
#include "layer.hpp"

namespace latticebpd {

// Of every row of numbers, [rows, count], the k largest and their places, both [rows, k], largest first and of equal ones those that come
// first; totals: [rows], ln sum e^number.  Where a total is no finite number, values are none at all.
//
// Of numbers in groups, the k-th largest of the groups' largest ones is at most the k-th largest of all: only groups that reach it are
// looked into.
struct Best {
    const float* numbers;
    std::size_t count, k;
    float* values;
    std::int32_t* places;
    float* totals;

    static constexpr std::size_t kGroup = 32;  // numbers, one of each vector of a block

    struct Found {
        float value;
        std::int32_t place;
    };

    [[gnu::always_inline]] void row(std::size_t number) const {
        constexpr std::size_t kBlock = kGroup * kLanes;
        const float* const from = numbers + number * count;
        const std::size_t blocks = count / kBlock, grouped = blocks * kBlock;
        thread_local std::vector<float> tops, ordered;  // kept: new memory costs more than what is done in it
        thread_local std::vector<Found> found;
        tops.resize(blocks * kLanes);
        float top = -std::numeric_limits<float>::infinity();
        for (std::size_t block = 0; block < blocks; ++block) {
            Lanes most = *reinterpret_cast<const Lanes*>(from + block * kBlock);
            for (std::size_t i = kLanes; i < kBlock; i += kLanes) {
                const Lanes some = *reinterpret_cast<const Lanes*>(from + block * kBlock + i);
                most = some > most ? some : most;
            }
            *reinterpret_cast<Lanes*>(tops.data() + block * kLanes) = most;
        }
        for (const float each : tops) top = std::max(top, each);
        for (std::size_t i = grouped; i < count; ++i) top = std::max(top, from[i]);

        Lanes sums = {};
        for (std::size_t i = 0; i < grouped; i += kLanes) {
            Lanes part = *reinterpret_cast<const Lanes*>(from + i) - top;
            exponential(part);
            sums += part;
        }
        double total = 0;
        for (std::size_t lane = 0; lane < kLanes; ++lane) total += static_cast<double>(sums[lane]);
        for (std::size_t i = grouped; i < count; ++i) total += std::exp(static_cast<double>(from[i] - top));
        totals[number] = static_cast<float>(static_cast<double>(top) + std::log(total));
        if (!std::isfinite(totals[number])) {
            std::fill_n(places + number * k, k, 0);
            std::fill_n(values + number * k, k, std::numeric_limits<float>::quiet_NaN());
            return;
        }

        float least = -std::numeric_limits<float>::infinity();
        if (k <= tops.size()) {
            ordered = tops;
            std::nth_element(ordered.begin(), ordered.begin() + static_cast<std::ptrdiff_t>(k - 1), ordered.end(), [](float a, float b) { return a > b; });
            least = ordered[k - 1];
        }
        found.clear();
        for (std::size_t group = 0; group < tops.size(); ++group)
            if (tops[group] >= least)
                for (std::size_t i = group / kLanes * kBlock + group % kLanes, end = i + kBlock; i < end; i += kLanes)
                    if (from[i] >= least) found.push_back({from[i], static_cast<std::int32_t>(i)});
        for (std::size_t i = grouped; i < count; ++i)
            if (from[i] >= least) found.push_back({from[i], static_cast<std::int32_t>(i)});
        std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(k), found.end(),
                          [](const Found& a, const Found& b) { return a.value != b.value ? a.value > b.value : a.place < b.place; });
        for (std::size_t i = 0; i < k; ++i) {
            values[number * k + i] = found[i].value;
            places[number * k + i] = found[i].place;
        }
    }
};

}  // namespace latticebpd
