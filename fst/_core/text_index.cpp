#include "text_index.hpp"

#include <limits>

#include <fst/refuse.hpp>

namespace fst_core {

using fst::refuse;

namespace {

constexpr std::size_t kFirstBuckets = 1024;
constexpr std::int64_t kLongestText = 1 << 26;  // up to eleven nodes a token, of 2^31 in all

}  // namespace

TextIndex::TextIndex() : nodes_{{0, 0, 0, 0, kNone, kNone, kNone}} { children_.clear(kFirstBuckets); }

std::int32_t TextIndex::add_child(std::int32_t node, std::int32_t token) {
    const auto [child, added] = children_.insert(key(node, token), static_cast<std::int32_t>(nodes_.size()));
    if (added) {
        nodes_.push_back({token, this->node(node).depth + 1, 0, 0, kRoot, kNone, this->node(node).first_child});
        nodes_[node].first_child = child;
    }
    ++nodes_[node].total;
    ++nodes_[child].count;
    return child;
}

void TextIndex::extend(std::span<const std::int64_t> tokens) {
    for (const std::int64_t token : tokens)
        if (token < 0 || token >= std::numeric_limits<std::int32_t>::max())
            refuse("expected token ids from 0 to 2^31 - 2, got ", token);
    if (size_ + static_cast<std::int64_t>(tokens.size()) > kLongestText)
        refuse("expected a text of at most 2^26 tokens, got ", size_ + static_cast<std::int64_t>(tokens.size()));
    constexpr std::size_t kMost = kLongestHistory + 1;  // nodes of a token
    for (const std::int64_t token : tokens) {
        // Memory first: a token is added with all its nodes, or none where there is not enough.
        if (nodes_.capacity() - nodes_.size() < kMost) nodes_.reserve(2 * nodes_.size() + kMost);
        children_.reserve(kMost);
        std::int32_t next = kNone, longer = kNone;
        for (std::int32_t history = end_; history != kNone; history = node(history).shorter) {
            const std::int32_t child = add_child(history, static_cast<std::int32_t>(token));
            if (longer == kNone) next = child;
            else nodes_[longer].shorter = child;
            longer = child;
        }
        end_ = node(next).depth > kLongestHistory ? node(next).shorter : next;
        ++size_;
    }
}

std::int32_t TextIndex::advance(std::int32_t history, std::int32_t token) const {
    for (; history != kNone; history = node(history).shorter)
        if (const std::int32_t next = child(history, token); next != kNone)
            return node(next).depth > kLongestHistory ? node(next).shorter : next;
    return kRoot;
}

}  // namespace fst_core
