// The p best paths of lattice x n-gram model, exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "constraint.hpp"
#include "graph.hpp"

namespace fst_core {

// What the search keeps between calls: memory, nothing else.
class NbestSearch {
  public:
    // Best first, ties by token: tokens [paths, lattice.longest()], -1 after a path's end; scores [paths]; valid until
    // the next call. No path where all are masked.
    struct Result {
        std::vector<std::int32_t> tokens;
        std::vector<double> scores;
    };
    // Of slots without two columns of one token or epsilons that lead on. p >= 1; alpha from 0 to kLargestWeight; a
    // lattice without a model is not rescored. Under a constraint, of sausages only, every token of a path is legal;
    // where no path is so to the lattice's end, paths are as long as the longest that is; they end earlier where the
    // constraint has more than 2^13 states.
    const Result& run(const Lattice& lattice, std::uint32_t start_state, std::int64_t p, double alpha,
                      Constraint* constraint = nullptr);

  private:
    static constexpr std::int32_t kUnknown = -2;
    struct Choice {             // a column as the next step from a node
        double value;           // step + best completion after it
        double step;            // log_prob + transition - alpha * cost
        std::int32_t next;      // path state; kNone at the lattice's end
        std::int32_t follower;  // the column after this one in the order of value and column
    };
    struct Prefix {
        double score;
        std::int32_t parent;
        std::int32_t column;  // among those of all slots
    };
    struct Candidate {  // a prefix, and a next column after it: stands for itself and all columns that follow in order
        double bound;
        std::int32_t prefix;
        std::int32_t path_state;
        std::int32_t column;
    };
    void evaluate_slot(std::int32_t slot);
    void evaluate(std::int32_t node, std::size_t depth);
    double completion_value(std::int32_t path_state, const std::vector<double>& row);
    std::int32_t evaluate_legal(std::uint32_t start_state, Constraint& constraint);
    void expand_legal(std::int32_t path_state, Constraint& constraint);
    const Graph::Step* add_choices(std::int32_t path_state);
    std::int32_t best_column(std::int32_t path_state);
    std::int32_t follower(const Candidate& candidate);
    std::int32_t next_in_order(const Choice* choices, std::int32_t size, double value, std::int32_t column);
    // A candidate comes from best_column() or follower(), so its path state has choices and its column is one of them.
    Choice& choice(const Candidate& candidate) {
        return choices_[first_choice_[candidate.path_state] + candidate.column];
    }
    std::int32_t global_column(const Candidate& candidate);
    bool before(const Candidate& a, const Candidate& b);
    void enumerate(std::int32_t root, std::int64_t p);
    void collect();

    Graph graph_;
    double alpha_ = 0;
    bool has_transitions_ = false;           // as the lattice has transitions
    std::size_t stride_ = 0;                 // columns of the slot at hand, padded
    std::vector<std::vector<double>> rows_;  // [length of the history, column]: of the chain of nodes being evaluated
    std::vector<double> values_;             // [path_state]: best score of a completion from there
    std::vector<double> gains_;  // [column before, column]: the transitions of the slot at hand, as far as known
    std::vector<std::uint8_t> has_gains_;     // [column before]
    std::size_t unevaluated_ = 0;             // nodes of the slot at hand
    std::vector<std::int32_t> first_choice_;  // [path_state] into choices_, kNone until visited
    std::vector<Choice> choices_;
    HashTable<std::uint64_t> legal_by_state_;    // by constraint state and slot, into legal_gains_ and legal_next_
    std::vector<double> legal_gains_;            // [column] -cost, -inf where the column is not legal
    std::vector<std::int32_t> legal_next_;       // [column] constraint state
    std::vector<std::int32_t> asked_, reached_;  // scratch of expand_legal()
    std::vector<Prefix> prefixes_;
    std::vector<Candidate> heap_;
    std::vector<std::int32_t> complete_;      // prefixes of full length
    std::vector<std::int32_t> left_, right_;  // scratch of before()
    std::vector<std::int32_t> unsorted_;
    std::vector<std::size_t> order_;
    Result result_;
};

}  // namespace fst_core
