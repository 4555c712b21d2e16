// Sorting a handful: positions by counting, free of branches that a processor would guess wrong half the time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace latticebpd {

// Puts into `out` the items of `in` in order; `before` is a strict total order, `in` and `out` are disjoint.
template <typename Item, typename Before>
void sort_into(std::span<const Item> in, std::span<Item> out, const Before& before) {
    constexpr std::size_t kHandful = 32;
    if (in.size() > kHandful) {
        std::copy(in.begin(), in.end(), out.begin());
        std::sort(out.begin(), out.end(), before);
        return;
    }
    std::size_t position[kHandful] = {};
    for (std::size_t i = 1; i < in.size(); ++i)
        for (std::size_t j = 0; j < i; ++j) {
            const bool first = before(in[i], in[j]);
            position[j] += first;
            position[i] += !first;
        }
    for (std::size_t i = 0; i < in.size(); ++i) out[position[i]] = in[i];
}

}  // namespace latticebpd
