#include "text_index.hpp"

#include <limits>
#include <stdexcept>
#include <string>

namespace fst_core {

namespace {

constexpr std::size_t kFirstBuckets = 1024;
constexpr std::int64_t kLongestText = 1 << 26;  // a node a history and token: beyond this, 2^31 of them

}  // namespace

TextIndex::TextIndex() : nodes_{{0, 0, 0, 0, kNone, kNone, kNone}}, buckets_(kFirstBuckets, kNone), parents_{kNone} {}

std::size_t TextIndex::bucket(std::int32_t node, std::int32_t token) const {
    const std::size_t mask = buckets_.size() - 1;
    const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(node)) << 32 | static_cast<std::uint32_t>(token);
    std::size_t at = (key * 0x9E3779B97F4A7C15u) >> 32 & mask;
    while (buckets_[at] != kNone && !(parents_[static_cast<std::size_t>(buckets_[at])] == node && this->node(buckets_[at]).token == token))
        at = (at + 1) & mask;
    return at;
}

std::int32_t TextIndex::child(std::int32_t node, std::int32_t token) const { return buckets_[bucket(node, token)]; }

void TextIndex::grow() {
    buckets_.assign(2 * buckets_.size(), kNone);
    for (std::size_t i = 1; i < nodes_.size(); ++i) buckets_[bucket(parents_[i], nodes_[i].token)] = static_cast<std::int32_t>(i);
}

std::int32_t TextIndex::add_child(std::int32_t node, std::int32_t token) {
    const std::size_t at = bucket(node, token);
    std::int32_t found = buckets_[at];
    if (found == kNone) {
        found = static_cast<std::int32_t>(nodes_.size());
        nodes_.push_back({token, this->node(node).depth + 1, 0, 0, kRoot, kNone, this->node(node).first_child});
        parents_.push_back(node);
        nodes_[static_cast<std::size_t>(node)].first_child = found;
        buckets_[at] = found;
        if (2 * nodes_.size() > buckets_.size()) grow();
    }
    ++nodes_[static_cast<std::size_t>(node)].total;
    ++nodes_[static_cast<std::size_t>(found)].count;
    return found;
}

void TextIndex::extend(std::span<const std::int64_t> tokens) {
    for (const std::int64_t token : tokens)
        if (token < 0 || token >= std::numeric_limits<std::int32_t>::max())
            throw std::invalid_argument("expected token ids from 0 to 2^31 - 2, got " + std::to_string(token));
    if (size_ + static_cast<std::int64_t>(tokens.size()) > kLongestText)
        throw std::invalid_argument("expected a text of at most 2^26 tokens, got " + std::to_string(size_ + static_cast<std::int64_t>(tokens.size())));
    for (const std::int64_t token : tokens) {
        std::int32_t next = kNone, longer = kNone;
        for (std::int32_t history = end_; history != kNone; history = node(history).shorter) {
            const std::int32_t found = add_child(history, static_cast<std::int32_t>(token));
            if (longer == kNone)
                next = found;
            else
                nodes_[static_cast<std::size_t>(longer)].shorter = found;
            longer = found;
        }
        end_ = node(next).depth > kLongestHistory ? node(next).shorter : next;
        ++size_;
    }
}

std::int32_t TextIndex::advance(std::int32_t history, std::int32_t token) const {
    for (; history != kNone; history = node(history).shorter)
        if (const std::int32_t next = child(history, token); next != kNone) return node(next).depth > kLongestHistory ? node(next).shorter : next;
    return kRoot;
}

}  // namespace fst_core
