// An acceptor as an automaton over a model's tokens: of token ids, or of bytes, composed with the tokens' spelling
// (Koo, Liu and He 2024). A state is a set of the acceptor's states from which some sequence of tokens leads to an end.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "acceptor.hpp"
#include "token_trie.hpp"

namespace fst_core {

class AcceptorOverTokens {
  public:
    // trie: the labels are bytes, which tokens spell; null: a label is a token + 1. end_tokens: one of them ends a
    // text, whatever it spells. ValueError where no sequence of tokens leads to an end.
    AcceptorOverTokens(Acceptor acceptor, std::shared_ptr<const TokenTrie> trie, std::int32_t vocab_size,
                       std::vector<std::int32_t> end_tokens);

    std::int32_t start() const { return start_; }
    std::int32_t vocab_size() const { return vocab_size_; }
    bool weighted() const { return acceptor_.weighted(); }
    std::int32_t num_states() const { return acceptor_.num_sets(); }

    struct Step {
        std::int32_t next;  // kNone where the token is not legal
        double cost;
    };
    Step step(std::int32_t state, std::int64_t token);
    // Writes 1 for every legal token.
    void legal(std::int32_t state, std::span<std::uint8_t> mask);
    // The labels that must follow: up to a choice or a state where a text may end.
    std::vector<std::int32_t> forced_labels(std::int32_t state);
    // Whether some legal token spells more than these bytes, which it begins with.
    bool has_longer(std::int32_t state, std::span<const std::uint8_t> bytes);

  private:
    static constexpr std::int32_t kNone = Acceptor::kNone;
    static constexpr std::int32_t kUnknown = -2;
    void find_live();
    // Whether a token, or epsilons, lead from a state of the acceptor to one that is live.
    bool reaches_live(std::int32_t from);
    // The state after a token that leads to a set; kNone where no further tokens lead to an end.
    std::int32_t boundary(std::int32_t set);
    const std::array<std::int32_t, 256>& row(std::int32_t set);
    void check(std::int32_t state) const;

    Acceptor acceptor_;
    std::shared_ptr<const TokenTrie> trie_;
    std::int32_t vocab_size_, start_ = 0;
    std::vector<std::int32_t> end_tokens_;
    std::vector<std::uint8_t> live_;        // [states of the acceptor] whether tokens lead to an end; empty: all
    std::int64_t live_steps_ = 0;           // what find_live() has cost
    std::vector<std::int32_t> boundaries_;  // [set]
    std::vector<std::unique_ptr<std::array<std::int32_t, 256>>> rows_;  // [set] the next set by each byte, or kNone
    std::vector<std::int32_t> path_;                                    // scratch: [depth] sets
};

}  // namespace fst_core
