// The best-first prefix tree of lattice x n-gram model, exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "best_first.hpp"
#include "constraint.hpp"
#include "graph.hpp"

namespace fst_core {

// A path goes on to a slot's tokens with probability softmax(log_prob + transition - alpha * cost), given the model's
// state and the column before. Under a constraint the softmax is over the legal tokens, less what each costs; a token
// that is forced follows alone, whether the slot has it or not, and after the lattice's last slot too.
class TreeSearch {
  public:
    using State = std::int32_t;  // a path state of the graph

    // num_nodes >= 1; alpha from 0 to kLargestWeight; a lattice without a model is not rescored.
    // Slots without columns are for forced tokens.
    const Tree& run(const Lattice& lattice, std::uint32_t start_state, std::int64_t num_nodes, double alpha,
                    Constraint* constraint = nullptr);

    Followers expand(State path_state);
    std::int32_t token(State path_state, std::int32_t follower) const;
    const double* log_probs() const { return conditionals_.data(); }
    bool next(State path_state, std::int32_t follower, State& out);

  private:
    Followers expand_forced(State path_state, std::int32_t token);

    Graph graph_;
    double alpha_ = 0;
    Constraint* constraint_ = nullptr;
    std::vector<Followers> followers_;  // [path_state] in conditionals_ and hits_: first -1 until asked for
    std::vector<double> conditionals_;  // log q(column | path), column by column; -inf after a masked transition
    std::vector<std::int32_t> hits_;    // the hit that each follower takes; kNone for a token that is no column
    BestFirst<TreeSearch> search_;
};

constexpr std::size_t kTreeBuckets = 64;  // of a graph's slot: a tree opens few nodes
constexpr double kForced = -0.01;         // ln p of a forced token that other tokens may replace

// ln p of the token that a constraint forces in a state.
inline double forced_log_prob(Constraint& constraint, std::int32_t state) {
    return constraint.num_legal(state) == 1 ? 0.0 : kForced;
}
// Of a slot's columns the one with this token, or -1.
std::int32_t column_of(const Lattice& lattice, std::int32_t slot, std::int32_t token);

// Refuses a tree larger than any verifier looks at, where the lattice has as many prefixes.
void check_num_nodes(const Lattice& lattice, std::int64_t num_nodes);
// Refuses a search that has opened more tokens than memory is for.
void check_opened(std::size_t tokens);

}  // namespace fst_core
