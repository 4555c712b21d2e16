// The p best paths of lattice x n-gram model, exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "graph.hpp"

namespace latticebpd {

// What the search keeps between calls: memory, nothing else.
class NbestSearch {
  public:
    // Best first, ties by token: tokens [found, slots], scores [found]; valid until the next call.
    struct Result {
        std::vector<std::int32_t> tokens;
        std::vector<double> scores;
    };
    // The lattice must have been assigned with the same model. p >= 1; alpha finite and >= 0; null model: unrescored.
    const Result& run(const Lattice& lattice, const Model* model, std::uint32_t start_state, std::int64_t p, double alpha);

  private:
    struct Choice {  // a column as the next step from a node
        double value;  // step + best completion behind it
        double step;   // log_prob - alpha * cost
        std::int32_t column;
        std::int32_t next_node;
    };
    struct Prefix {
        double score;
        std::int32_t parent;
        std::int32_t column;
    };
    struct Candidate {  // a prefix, and the rank-th best next column after it: stands for itself and all ranks below
        double bound;
        std::int32_t prefix;
        std::int32_t node;
        std::int32_t rank;
    };
    double evaluate(std::int32_t node, int depth);
    void sort_unigrams(const Graph::Node& node);
    std::pair<double, std::int32_t> best_backed_off(const Graph::Node& node);
    void rank(std::int32_t node);
    const Choice& choice(const Candidate& candidate) { return choices_[static_cast<std::size_t>(first_choice_[static_cast<std::size_t>(candidate.node)] + candidate.rank)]; }
    bool before(const Candidate& a, const Candidate& b);
    void enumerate(std::int32_t root, std::int64_t p);
    void collect();

    Graph graph_;
    double alpha_ = 0;
    std::vector<std::vector<std::int32_t>> unigram_order_;  // [slot]: hits of the unigram node, best first
    std::vector<std::uint32_t> marks_;
    std::uint32_t mark_ = 0;
    std::vector<Graph::Step> steps_;
    std::vector<std::int32_t> first_choice_;  // [node] into choices_, -1 until ranked
    std::vector<Choice> choices_;
    std::vector<std::int32_t> unsorted_hits_;
    std::vector<Choice> unsorted_choices_;
    std::vector<Prefix> prefixes_;
    std::vector<Candidate> heap_;
    std::vector<std::int32_t> complete_;  // prefixes of full length
    std::vector<std::int32_t> left_, right_;  // scratch of before()
    std::vector<std::int32_t> unsorted_;
    std::vector<std::size_t> order_;
    Result result_;
};

}  // namespace latticebpd
