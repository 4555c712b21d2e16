// An automaton over tokens as a search asks it: which tokens may follow a path, which one must, and what each costs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hash_table.hpp"

namespace fst_core {

// States are numbers of the automaton's own. Errors are exceptions.
class TokenAutomaton {
  public:
    virtual ~TokenAutomaton() = default;
    virtual std::int64_t start() const = 0;
    virtual bool weighted() const = 0;  // whether costs are other than 0
    // [tokens] whether each is legal, 0 or 1: memory that stays as long as the automaton. Tokens beyond are not.
    virtual std::span<const std::uint8_t> legal(std::int64_t state) = 0;
    // [tokens] the state after each of some legal tokens, and its cost.
    virtual void successors(std::int64_t state, std::span<const std::int32_t> tokens, std::int64_t* states) = 0;
    virtual void costs(std::int64_t state, std::span<const std::int32_t> tokens, double* costs) = 0;
    virtual std::vector<std::int32_t> forced(std::int64_t state) = 0;  // the tokens that must follow
};

// Asks an automaton once for everything, for one search. States are numbered from 0, the start, as they are reached.
class Constraint {
  public:
    static constexpr std::int32_t kNone = -1;
    static constexpr std::int32_t kStart = 0;
    static constexpr std::size_t kFew = 16;

    explicit Constraint(TokenAutomaton& automaton);

    bool is_legal(std::int32_t state, std::int32_t token) {
        const std::span<const std::uint8_t> legal = this->state(state).legal;
        return static_cast<std::size_t>(token) < legal.size() && legal[token] != 0;
    }
    std::int64_t num_legal(std::int32_t state) { return this->state(state).num_legal; }
    std::int64_t vocab_size(std::int32_t state) { return static_cast<std::int64_t>(this->state(state).legal.size()); }
    // All legal tokens, rising, where there are at most kFew; else none.
    std::span<const std::int32_t> few_legal(std::int32_t state) { return this->state(state).few; }
    // The token that must follow, or kNone; none where the automaton does not allow it.
    std::int32_t forced(std::int32_t state);
    std::size_t num_states() const { return states_.size(); }  // that were reached
    // The state after a legal token.
    std::int32_t next(std::int32_t state, std::int32_t token);
    // As next() of several legal tokens, in one request.
    void next(std::int32_t state, std::span<const std::int32_t> tokens, std::int32_t* states);
    // Subtracts the cost of each token from its score, which is -inf where the token is not legal.
    void apply(std::int32_t state, std::span<const std::int32_t> tokens, double* scores);

  private:
    static constexpr std::int32_t kUnknown = -2;
    struct State {
        std::int64_t number;  // the automaton's
        std::int64_t num_legal = kUnknown;
        std::span<const std::uint8_t> legal;
        std::vector<std::int32_t> few;
        std::vector<std::int32_t> forced;
        bool has_forced = false, is_forced_legal = false;  // asked for; checked
    };
    const State& state(std::int32_t index);
    std::int32_t index_of(std::int64_t number);

    TokenAutomaton& automaton_;
    std::vector<State> states_;
    HashTable<std::uint64_t> by_number_;
    HashTable<std::uint64_t> next_;         // by state and token
    std::vector<std::int32_t> asked_;       // scratch: tokens
    std::vector<std::int64_t> successors_;  // scratch
    std::vector<double> costs_;             // scratch
};

}  // namespace fst_core
