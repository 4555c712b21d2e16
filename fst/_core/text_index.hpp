// The n-grams of one text, counted as the text grows: an adaptive language model.
//
// A trie of n-grams, oldest token first, of up to kLongestHistory + 1 tokens. A node is an n-gram that occurs; as a
// *history* it is one of at most kLongestHistory tokens. Every node has a failure link to the n-gram without its first
// token, so that the longest known history moves on in constant time on average, as a backoff automaton's does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hash_table.hpp"

namespace fst_core {

class TextIndex {
  public:
    static constexpr std::int32_t kLongestHistory = 10;
    static constexpr std::int32_t kRoot = 0;
    static constexpr std::int32_t kNone = -1;

    struct Node {
        std::int32_t token;
        std::int32_t depth;        // tokens of the n-gram
        std::int32_t count;        // how often it occurs
        std::int32_t total;        // how often a token follows it
        std::int32_t shorter;      // failure link; kNone at the root
        std::int32_t first_child;  // the one added last
        std::int32_t next_sibling;
    };

    TextIndex();
    // Where memory does not suffice, the text ends before the token that there was none for.
    void extend(std::span<const std::int64_t> tokens);
    std::int64_t size() const { return size_; }

    const Node& node(std::int32_t index) const { return nodes_[index]; }
    // The n-gram followed by a token, or kNone.
    std::int32_t child(std::int32_t node, std::int32_t token) const { return children_.find(key(node, token)); }
    // The longest history at the end of the text; the longest that ends in `token` after `history`.
    std::int32_t end() const { return end_; }
    std::int32_t advance(std::int32_t history, std::int32_t token) const;

  private:
    static std::uint64_t key(std::int32_t node, std::int32_t token) {
        return std::uint64_t{static_cast<std::uint32_t>(node)} << 32 | static_cast<std::uint32_t>(token);
    }
    std::int32_t add_child(std::int32_t node, std::int32_t token);

    std::vector<Node> nodes_;
    HashTable<std::uint64_t> children_;  // by parent and token
    std::int32_t end_ = kRoot;
    std::int64_t size_ = 0;
};

}  // namespace fst_core
