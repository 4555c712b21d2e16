// Best-first prefix trees under calibrated probabilities: a log-linear model of what the drafter, the n-gram model and
// the context say of a token.
//
//     P(token | path, slot) = exp(w[slot] . f(token, path)) / (sum over the arcs of the same + exp(w[slot] .
//     f(outside)))
//
// The arcs are the slot's tokens and those that followed the path's last tokens earlier in the text (*copies*);
// *outside* stands for all other tokens. Every factor is below 1, so that the search stays exact. After the drafter's
// slots a lattice may have slots without a column, `Lattice::extend`: their arcs are copies and, where they are asked
// for, *proposals*: the tokens that the n-gram model holds likeliest. A lattice may have no other slots at all, where
// there is no drafter.
//
// Under a constraint arcs are legal, and outside stands for the legal tokens among all others: its share is theirs. A
// forced token follows alone; where few tokens are legal, all are arcs, and nothing is outside.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "best_first.hpp"
#include "constraint.hpp"
#include "graph.hpp"
#include "text_index.hpp"

namespace fst_core {

class CalibratedSearch {
  public:
    // What is known of an arc, and of outside. Of the numbers of a kind that exclude each other at most one is 1, the
    // others are 0. Each stands again, kEach later, in slots of which an arc matches kLong tokens or more.
    enum Feature : std::int32_t {
        kLogProb,     // the drafter's, with the transition from the column before, kLeast at the least; else 0
        kNotDrafted,  // 1 for a copy or a proposal, which the slot lacks
        kNgram,       // ln p of the n-gram model, kLeast at the least
        kNgramProb,   // p
        kBigram,      // 1 where the n-gram model has the token after a history of one token ...
        kTrigram,
        kLongerNgram,
        kSeen,   // 1 where the text has the token, but not after the path's last one
        kMatch,  // six: 1 where the text has it after the last 1, 2, 3, 4-5, 6-8, 9-10 tokens of the path
        kShareSeen = kMatch + 6,  // ln of its share of the text's tokens after that match: for kSeen, 1 token, more
        kShareMatch,
        kShareLonger,
        kShareProb,  // the share itself, after kLong tokens or more
        kOutside,    // 1 for outside
        kMass,       // ln of the drafter's probability of all tokens that the slot lacks; 0 for arcs
        kEach,
        kFeatures = 2 * kEach,
    };
    static constexpr std::int32_t kLong = 2;  // tokens of a long match
    static constexpr double kLeast = -30;
    static constexpr std::int32_t kMostCopies = 8;   // that a slot lacks, the longest matches first
    static constexpr std::int32_t kMostListed = 64;  // a history with more continuations is only asked for columns
    static constexpr std::int32_t kMostProposals = 64;
    static constexpr double kLargestWeight = 1e6;

    struct State {
        std::int32_t path_state;  // of the graph
        std::int32_t history;     // of the text index
    };

    // weights: [slots, kFeatures] row-major, finite, within kLargestWeight; the last row is for all slots without a
    // column where they exist, and the last row of the others for all further slots; of a lattice without columns the
    // rows are those of its slots, the last one for all further ones. text: all tokens before the lattice. proposals:
    // of the n-gram model, at most so many in a slot without columns, from 0 to kMostProposals. Other arguments as for
    // TreeSearch.
    const Tree& run(const Lattice& lattice, std::uint32_t start_state, const TextIndex& text,
                    std::span<const double> weights, std::int64_t num_nodes, std::int64_t proposals,
                    Constraint* constraint = nullptr);

    // The features of the arcs that a path meets, slot by slot, outside last; arcs by rising token.
    struct Description {
        std::vector<float> features;       // [arcs of all slots, kFeatures]
        std::vector<std::int32_t> tokens;  // [arcs of all slots], -1 for outside
        std::vector<std::int32_t> sizes;   // [slots of the path] arcs, outside among them
    };
    Description describe(const Lattice& lattice, std::uint32_t start_state, const TextIndex& text,
                         std::span<const std::int64_t> path, std::int64_t proposals);

    Followers expand(const State& state);
    std::int32_t token(const State&, std::int32_t follower) const { return arcs_[follower].token; }
    const double* log_probs() const { return conditionals_.data(); }
    bool next(const State& state, std::int32_t follower, State& out);

  private:
    struct Arc {
        std::int32_t token;
        std::int32_t hit;          // of the graph; kNone for a copy or a proposal
        std::uint32_t next_state;  // of the model, for a copy or a proposal
        std::int32_t level;        // of the n-gram
        std::int32_t match;        // tokens of the path that the text has before the token; -1 where it lacks the token
        float share;               // ln
        double log_prob, ngram;
    };
    State start(const Lattice& lattice, std::uint32_t start_state, const TextIndex& text, std::int64_t proposals,
                Constraint* constraint);
    std::int32_t constraint_state(const State& state) const { return graph_.constraint_state_of(state.path_state); }
    bool is_legal(const State& state, std::int32_t token) const {
        return constraint_ == nullptr || constraint_->is_legal(constraint_state(state), token);
    }
    std::int32_t forced(const State& state) const {
        return constraint_ == nullptr ? Constraint::kNone : constraint_->forced(constraint_state(state));
    }
    void add_few_legal(const State& state, std::int32_t first);
    // Subtracts what tokens cost; returns ln of the share of tokens beyond these arcs that are legal.
    double apply_constraint(const State& state, const Followers& followers, double* scores);
    Followers find_arcs(const State& state);
    void add_proposals(const State& state);
    void match_columns(const State& state, std::int32_t first, std::int32_t size);
    void add_copies(const State& state, std::int32_t first, std::int32_t size);
    Arc not_drafted(const State& state, std::int32_t token);
    void set_match(Arc& arc, std::int32_t history, std::int32_t child) const;
    double outside_mass(std::int32_t slot) const;
    // Of the arcs that `find_arcs` has just returned.
    bool has_long_match(const Followers& range) const {
        return std::any_of(arcs_.begin() + range.first, arcs_.end(), [](const Arc& arc) { return arc.match >= kLong; });
    }
    const double* weights_of(std::int32_t slot, bool matched) const;
    // Calls take(feature, value) for every feature of an arc that is not 0.
    template <typename Take>
    static void each_feature(const Arc& arc, const Take& take);

    Graph graph_;
    const TextIndex* text_ = nullptr;
    Constraint* constraint_ = nullptr;
    std::vector<std::int32_t> tokens_;  // scratch of apply_constraint()
    std::size_t proposals_ = 0;
    std::vector<std::pair<double, std::int32_t>> likeliest_;  // scratch of add_proposals(): cost and token
    std::vector<double> weights_;                             // [slots, 2, kEach]: without a long match, with one
    std::vector<Arc> arcs_;                                   // of all states that were expanded
    std::vector<double> conditionals_;                        // [arcs]
    BestFirst<CalibratedSearch> search_;
};

}  // namespace fst_core
