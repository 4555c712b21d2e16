// The columns of a pass: draft tokens after a text in a cache, each after another one or after the text's last token.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "architecture.hpp"
#include "kv_cache.hpp"

namespace engine {

// A text's columns in a pass, the first of them number `first` after the text. parents: of each column the one before
// it, smaller than itself; -1: the text's last token.
struct Columns {
    Cache* cache;
    const std::int64_t *tokens, *parents;
    std::size_t count, first;

    // Make them the cache's last columns, after its first `first` ones; the vocabulary bounds the tokens.
    void append(std::size_t vocabulary) const {
        std::vector<std::int64_t>& pending = cache->pending;
        if (first > pending.size())
            fst::refuse("expected columns after at most ", pending.size(), " earlier ones, got ", first);
        pending.resize(first);
        cache->reserve(cache->length + first + count);
        for (std::size_t i = 0; i < count; ++i) {
            if (tokens[i] < 0 || tokens[i] >= static_cast<std::int64_t>(vocabulary))
                fst::refuse("expected tokens below ", vocabulary, ", got ", tokens[i]);
            if (parents[i] < -1 || parents[i] >= static_cast<std::int64_t>(pending.size()))
                fst::refuse("expected parents before their children, from -1 on, got ", parents[i], " for column ",
                            pending.size());
            pending.push_back(parents[i]);
        }
    }

    // The positions of the cache's columns, earlier ones included.
    std::vector<std::size_t> positions() const {
        std::vector<std::size_t> all;
        for (const std::int64_t parent : cache->pending)
            all.push_back(parent < 0 ? cache->length : all[static_cast<std::size_t>(parent)] + 1);
        return all;
    }
};

// What the columns of a text see in layers of one window (0: none), as `Attention` has it.
struct MaskView {
    std::vector<std::uint32_t> first, begin{0}, ancestors;

    MaskView(const Columns& text, const std::vector<std::size_t>& positions, std::size_t window) {
        std::vector<std::uint32_t> path;
        for (std::size_t column = text.first; column < text.first + text.count; ++column) {
            const std::size_t next = positions[column] + 1, least = window != 0 && next > window ? next - window : 0;
            first.push_back(static_cast<std::uint32_t>(std::min(least, text.cache->length)));
            path.clear();
            const std::vector<std::int64_t>& parents = text.cache->pending;
            for (auto at = static_cast<std::int64_t>(column); at >= 0; at = parents[static_cast<std::size_t>(at)])
                if (positions[static_cast<std::size_t>(at)] >= least) path.push_back(static_cast<std::uint32_t>(at));
            ancestors.insert(ancestors.end(), path.rbegin(), path.rend());
            begin.push_back(static_cast<std::uint32_t>(ancestors.size()));
        }
    }
};

}  // namespace engine
