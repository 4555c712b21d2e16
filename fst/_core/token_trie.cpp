#include "token_trie.hpp"

#include <algorithm>
#include <numeric>

#include <fst/refuse.hpp>

namespace fst_core {

TokenTrie::TokenTrie(const std::vector<std::optional<std::string>>& spelled) : offsets_{0} {
    constexpr std::size_t kMost = 1u << 28;
    for (const auto& bytes : spelled) {
        if (bytes) bytes_.insert(bytes_.end(), bytes->begin(), bytes->end());
        offsets_.push_back(static_cast<std::int64_t>(bytes_.size()));
    }
    if (bytes_.size() > kMost || spelled.size() > kMost)
        fst::refuse("expected tokens of fewer than 2^28 bytes, got ", bytes_.size());
    tokens_.resize(spelled.size());
    std::iota(tokens_.begin(), tokens_.end(), 0);
    std::erase_if(tokens_, [&](std::int32_t token) { return bytes(token).empty(); });
    std::ranges::stable_sort(tokens_, [&](std::int32_t a, std::int32_t b) {
        return std::ranges::lexicographical_compare(bytes(a), bytes(b));
    });
    std::vector<std::int32_t> path;  // nodes from the root to the last token's
    const auto close = [&](std::size_t depth) {
        for (; path.size() > depth; path.pop_back()) nodes_[path.back()].end = size();
    };
    std::span<const std::uint8_t> previous;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
        const std::span<const std::uint8_t> bytes = this->bytes(tokens_[i]);
        close(static_cast<std::size_t>(std::ranges::mismatch(previous, bytes).in2 - bytes.begin()));
        while (path.size() < bytes.size()) {
            path.push_back(size());
            nodes_.push_back(
                {bytes[path.size() - 1], static_cast<std::int32_t>(path.size()), 0, static_cast<std::int32_t>(i), 0});
        }
        ++nodes_[path.back()].num_tokens;
        longest_ = std::max(longest_, static_cast<std::int32_t>(bytes.size()));
        previous = bytes;
    }
    close(0);
}

}  // namespace fst_core
