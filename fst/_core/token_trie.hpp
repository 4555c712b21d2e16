// The tokens of a model by their bytes, as a trie in preorder: walked together with an automaton over bytes, whose dead
// ends skip all tokens that begin alike.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fst_core {

class TokenTrie {
  public:
    struct Node {
        std::uint8_t byte;
        std::int32_t depth;  // bytes from the root, 1 for the first
        std::int32_t end;    // the node after all that continue this one
        std::int32_t first_token, num_tokens;
    };

    // The bytes of each token; none for one that spells nothing.
    explicit TokenTrie(const std::vector<std::optional<std::string>>& spelled);

    std::int32_t vocab_size() const { return static_cast<std::int32_t>(offsets_.size()) - 1; }
    std::int32_t size() const { return static_cast<std::int32_t>(nodes_.size()); }
    std::int32_t longest() const { return longest_; }
    const Node& node(std::int32_t index) const { return nodes_[index]; }
    std::span<const std::int32_t> tokens(const Node& node) const {
        return {tokens_.data() + node.first_token, static_cast<std::size_t>(node.num_tokens)};
    }
    std::span<const std::uint8_t> bytes(std::int32_t token) const {
        return {bytes_.data() + offsets_[token], static_cast<std::size_t>(offsets_[token + 1] - offsets_[token])};
    }

  private:
    std::vector<Node> nodes_;
    std::vector<std::int32_t> tokens_;
    std::vector<std::uint8_t> bytes_;    // of all tokens
    std::vector<std::int64_t> offsets_;  // [tokens + 1]
    std::int32_t longest_ = 0;
};

}  // namespace fst_core
