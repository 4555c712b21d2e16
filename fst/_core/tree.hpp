// The best-first prefix tree of lattice x n-gram model, exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "graph.hpp"

namespace latticebpd {

// What the search keeps between calls: memory, nothing else.
class TreeSearch {
  public:
    // [found] each, best first; parents precede children, -1 is the root; valid until the next call.
    struct Result {
        std::vector<std::int32_t> tokens, parents;
        std::vector<double> log_probs;  // of the whole path
    };
    // The lattice must have been assigned with the same model. num_nodes >= 1; alpha from 0 to kLargestWeight; null model:
    // unrescored.
    const Result& run(const Lattice& lattice, const Model* model, std::uint32_t start_state, std::int64_t num_nodes, double alpha);

  private:
    struct Candidate {  // a child of a tree node: stands for itself and for all its siblings that come after it
        double log_prob;
        std::int32_t parent;
        std::int32_t column;
        std::int32_t node;          // of the graph, before the column
        std::int32_t distribution;  // of that node
    };
    void propose(Candidate sibling);
    std::int32_t distribution(std::int32_t node);
    bool before(const Candidate& a, const Candidate& b);

    Graph graph_;
    double alpha_ = 0;
    std::vector<Graph::Step> steps_;
    // [graph node] into conditionals_ and hits_: -1 until asked for
    std::vector<std::int32_t> distribution_of_;
    std::vector<double> conditionals_;  // log q(column | path), column by column
    std::vector<std::int32_t> hits_;    // the hit that each column takes
    std::vector<Candidate> heap_;
    std::vector<std::int32_t> columns_;  // [found]
    std::vector<std::int32_t> left_, right_;  // scratch of before()
    Result result_;
};

}  // namespace latticebpd
