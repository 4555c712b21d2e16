// The best-first prefix tree of lattice x n-gram model, exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "best_first.hpp"
#include "graph.hpp"

namespace fst_core {

// A path goes on to a slot's tokens with probability softmax(log_prob + transition - alpha * cost), given the model's
// state and the column before.
class TreeSearch {
  public:
    using State = std::int32_t;  // a path state of the graph

    // num_nodes >= 1; alpha from 0 to kLargestWeight; a lattice without a model is not rescored.
    const Tree& run(const Lattice& lattice, std::uint32_t start_state, std::int64_t num_nodes, double alpha);

    Followers expand(State path_state);
    std::int32_t token(State path_state, std::int32_t follower) const;
    const double* log_probs() const { return conditionals_.data(); }
    bool next(State path_state, std::int32_t follower, State& out);

  private:
    Graph graph_;
    double alpha_ = 0;
    std::vector<std::int32_t> first_of_;  // [path_state] into conditionals_ and hits_: -1 until asked for
    std::vector<double> conditionals_;    // log q(column | path), column by column; -inf after a masked transition
    std::vector<std::int32_t> hits_;      // the hit that each column takes
    BestFirst<TreeSearch> search_;
};

constexpr std::size_t kTreeBuckets = 64;  // of a graph's slot: a tree opens few nodes

// Refuses a tree larger than any verifier looks at, where the lattice has as many prefixes.
void check_num_nodes(const Lattice& lattice, std::int64_t num_nodes);
// Refuses a search that has opened more tokens than memory is for.
void check_opened(std::size_t tokens);

}  // namespace fst_core
