// Best-first search of a prefix tree: whatever the tokens that may follow a prefix, and their probabilities, depend on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace fst_core {

// The tokens that may follow one prefix, by rising token, among all that have been asked for.
struct Followers {
    std::int32_t first;
    std::int32_t size;
};

// [nodes] each, best first; parents precede children, -1 is the root.
struct Tree {
    std::vector<std::int32_t> tokens, parents;
    std::vector<double> log_probs;  // of the path from the root
};

// What a search keeps between calls: memory, nothing else. An `Expander` has
//     Followers expand(state)                       of a prefix in that state
//     std::int32_t token(i), double log_prob(i)      of the i-th follower; log_prob(token | prefix) <= 0
//     bool next(state, i, State& out)                the state after it; false where nothing follows
template <typename Expander>
class BestFirst {
  public:
    using State = typename Expander::State;

    // A child is never better than its parent, so the best prefixes come off a heap in order. A child waits for its
    // better siblings, and a path is followed only once it is in the tree. The result is valid until the next call.
    const Tree& run(Expander& expander, const State& root, std::int64_t num_nodes) {
        heap_.clear();
        result_.tokens.clear();
        result_.parents.clear();
        result_.log_probs.clear();
        propose(expander, {kBeforeAll, -1, -1, root, expander.expand(root)});
        const auto worse = [this](const Candidate& a, const Candidate& b) { return before(b, a); };
        while (!heap_.empty()) {
            std::pop_heap(heap_.begin(), heap_.end(), worse);
            const Candidate at = heap_.back();
            heap_.pop_back();
            const auto node = static_cast<std::int32_t>(result_.tokens.size());
            result_.tokens.push_back(at.token);
            result_.parents.push_back(at.parent);
            result_.log_probs.push_back(at.log_prob);
            if (node + 1 == num_nodes) break;
            propose(expander, at);
            State next;
            if (expander.next(at.state, at.follower, next))
                propose(expander, {kBeforeAll, node, -1, next, expander.expand(next)});
        }
        return result_;
    }

  private:
    static constexpr double kBeforeAll = std::numeric_limits<double>::infinity();

    struct Candidate {  // a child of a tree node: stands for itself and for all its siblings that come after it
        double log_prob;
        std::int32_t parent;
        std::int32_t follower;  // -1 before the first
        State state;            // before the token
        Followers siblings;
        std::int32_t token = -1;
    };

    // Puts the next child after `sibling` in the order of log-probability and token into the heap, if there is one.
    void propose(const Expander& expander, Candidate sibling) {
        const double path = sibling.parent < 0 ? 0.0 : result_.log_probs[sibling.parent];
        const double* const conditionals = expander.log_probs() + sibling.siblings.first;
        const std::int32_t last = sibling.follower - sibling.siblings.first;
        double best = -std::numeric_limits<double>::infinity();
        std::int32_t chosen = -1;
        for (std::int32_t c = 0; c < sibling.siblings.size; ++c) {
            const double log_prob = path + conditionals[c];
            const bool after = (log_prob < sibling.log_prob) | ((log_prob == sibling.log_prob) & (c > last));
            const bool better = after & (log_prob > best);
            best = better ? log_prob : best;
            chosen = better ? c : chosen;
        }
        if (chosen < 0) return;
        sibling.log_prob = best;
        sibling.follower = sibling.siblings.first + chosen;
        sibling.token = expander.token(sibling.state, sibling.follower);
        heap_.push_back(sibling);
        std::push_heap(heap_.begin(), heap_.end(),
                       [this](const Candidate& a, const Candidate& b) { return before(b, a); });
    }

    // More probable first; among equals the path whose tokens come first, a prefix before what continues it.
    bool before(const Candidate& a, const Candidate& b) {
        if (a.log_prob != b.log_prob) return a.log_prob > b.log_prob;
        const auto tokens = [&](const Candidate& candidate, std::vector<std::int32_t>& out) {
            out.assign(1, candidate.token);
            for (std::int32_t at = candidate.parent; at >= 0; at = result_.parents[at])
                out.push_back(result_.tokens[at]);
        };
        tokens(a, left_);
        tokens(b, right_);
        return std::lexicographical_compare(left_.rbegin(), left_.rend(), right_.rbegin(), right_.rend());
    }

    std::vector<Candidate> heap_;
    std::vector<std::int32_t> left_, right_;  // scratch of before()
    Tree result_;
};

}  // namespace fst_core
