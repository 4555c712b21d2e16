// The n-grams of one text, filed as the text grows: the adaptive language model's counts.
//
// A trie of n-grams, oldest token first, of up to kLongestHistory + 1 tokens. A node is an n-gram that occurs; as a *history*
// it is one of at most kLongestHistory tokens. Every node has a failure link to the n-gram without its first token, so that
// the longest known history moves on in constant time on average, as a backoff automaton's does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fst_core {

class TextIndex {
  public:
    static constexpr std::int32_t kLongestHistory = 10;
    static constexpr std::int32_t kRoot = 0;
    static constexpr std::int32_t kNone = -1;

    struct Node {
        std::int32_t token;
        std::int32_t depth;  // tokens of the n-gram
        std::int32_t count;  // how often it occurs
        std::int32_t total;  // how often it occurs with a token behind it
        std::int32_t shorter;      // failure link; kNone at the root
        std::int32_t first_child;  // the latest new one
        std::int32_t next_sibling;
    };

    TextIndex();
    void extend(std::span<const std::int64_t> tokens);
    std::int64_t size() const { return size_; }

    const Node& node(std::int32_t index) const { return nodes_[static_cast<std::size_t>(index)]; }
    // The n-gram with a token behind it, or kNone.
    std::int32_t child(std::int32_t node, std::int32_t token) const;
    // The longest history at the end of the text; the longest that ends in `token` after `history`.
    std::int32_t end() const { return end_; }
    std::int32_t advance(std::int32_t history, std::int32_t token) const;

  private:
    std::size_t bucket(std::int32_t node, std::int32_t token) const;
    std::int32_t add_child(std::int32_t node, std::int32_t token);
    void grow();

    std::vector<Node> nodes_;
    std::vector<std::int32_t> buckets_;  // children by (parent, token), open addressing
    std::vector<std::int32_t> parents_;  // [nodes]
    std::int32_t end_ = kRoot;
    std::int64_t size_ = 0;
};

}  // namespace fst_core
