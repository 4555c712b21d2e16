#include "tree.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace latticebpd {

namespace {

constexpr std::size_t kBuckets = 64;  // a slot: a tree opens few nodes
constexpr std::int64_t kMostNodes = 1 << 22;  // more take gigabytes, and no verifier looks at them
constexpr std::size_t kMostConditionals = 1u << 28;

}  // namespace

// A child is never better than its parent, so the best prefixes come off a heap in order. Children wait behind the
// best of their siblings, and a path is followed into the model only once it is in the tree.
const TreeSearch::Result& TreeSearch::run(const Lattice& lattice, const Model* model, std::uint32_t start_state, std::int64_t num_nodes,
                                          double alpha) {
    if (num_nodes > kMostNodes && lattice.has_more_prefixes(kMostNodes))
        throw std::invalid_argument("expected a tree of at most 2^22 nodes, got num_nodes = " + std::to_string(num_nodes) + "; lower it");
    alpha_ = alpha;
    graph_.assign(lattice, model, kBuckets);
    if (steps_.size() < static_cast<std::size_t>(lattice.max_columns())) steps_.resize(static_cast<std::size_t>(lattice.max_columns()));
    distribution_of_.clear();
    conditionals_.clear();
    hits_.clear();
    heap_.clear();
    columns_.clear();
    result_.tokens.clear();
    result_.parents.clear();
    result_.log_probs.clear();

    constexpr double kBeforeAll = std::numeric_limits<double>::infinity();
    const std::int32_t root = graph_.node_of(0, start_state);
    propose({kBeforeAll, -1, -1, root, distribution(root)});
    while (!heap_.empty()) {
        std::pop_heap(heap_.begin(), heap_.end(), [&](const Candidate& a, const Candidate& b) { return before(b, a); });
        const Candidate at = heap_.back();
        heap_.pop_back();
        const auto found = static_cast<std::int32_t>(columns_.size());
        const std::int32_t slot = graph_.node(at.node).slot;
        columns_.push_back(at.column);
        result_.tokens.push_back(lattice.token(lattice.slot(slot).first + at.column));
        result_.parents.push_back(at.parent);
        result_.log_probs.push_back(at.log_prob);
        if (found + 1 == num_nodes) break;
        propose(at);
        if (slot + 1 < lattice.slots()) {
            const std::int32_t next = graph_.next_node(hits_[static_cast<std::size_t>(at.distribution + at.column)], slot + 1);
            propose({kBeforeAll, found, -1, next, distribution(next)});
        }
    }
    return result_;
}

// Puts the next child after `sibling` in the order of log-probability and token into the heap, if there is one.
void TreeSearch::propose(Candidate sibling) {
    const std::int32_t size = graph_.lattice().slot(graph_.node(sibling.node).slot).size;
    const double path = sibling.parent < 0 ? 0.0 : result_.log_probs[static_cast<std::size_t>(sibling.parent)];
    const double* const conditionals = conditionals_.data() + sibling.distribution;
    double best = -std::numeric_limits<double>::infinity();
    std::int32_t column = -1;
    for (std::int32_t c = 0; c < size; ++c) {
        const double log_prob = path + conditionals[c];
        const bool after = (log_prob < sibling.log_prob) | ((log_prob == sibling.log_prob) & (c > sibling.column));
        const bool better = after & (log_prob > best);
        best = better ? log_prob : best;
        column = better ? c : column;
    }
    if (column < 0) return;
    sibling.log_prob = best;
    sibling.column = column;
    heap_.push_back(sibling);
    std::push_heap(heap_.begin(), heap_.end(), [&](const Candidate& a, const Candidate& b) { return before(b, a); });
}

// log q(column) = log softmax over the slot's columns of log_prob - alpha * cost.
std::int32_t TreeSearch::distribution(std::int32_t node) {
    if (distribution_of_.size() <= static_cast<std::size_t>(node)) distribution_of_.resize(std::max(graph_.num_nodes(), std::size_t{64}), -1);
    if (const std::int32_t known = distribution_of_[static_cast<std::size_t>(node)]; known >= 0) return known;
    graph_.open(node);
    graph_.resolve(node, steps_.data());
    const Lattice& lattice = graph_.lattice();
    const std::int32_t slot = graph_.node(node).slot;
    const Lattice::Slot& columns = lattice.slot(slot);
    if (conditionals_.size() > kMostConditionals)
        throw std::invalid_argument("expected a tree that opens fewer than 2^28 tokens; lower num_nodes or k");
    const auto first = static_cast<std::int32_t>(conditionals_.size());
    double best = -std::numeric_limits<double>::infinity();
    for (std::int32_t c = 0; c < columns.size; ++c) {
        const Graph::Step& step = steps_[static_cast<std::size_t>(c)];
        conditionals_.push_back(lattice.log_prob(columns.first + c) + alpha_ * -step.cost);
        hits_.push_back(step.hit);
        best = std::max(best, conditionals_.back());
    }
    double total = 0;
    for (std::int32_t c = 0; c < columns.size; ++c) total += std::exp(conditionals_[static_cast<std::size_t>(first + c)] - best);
    const double normaliser = best + std::log(total);
    for (std::int32_t c = 0; c < columns.size; ++c) conditionals_[static_cast<std::size_t>(first + c)] -= normaliser;
    return distribution_of_[static_cast<std::size_t>(node)] = first;
}

// More probable first; among equals the path whose columns come first, a prefix before what continues it.
bool TreeSearch::before(const Candidate& a, const Candidate& b) {
    if (a.log_prob != b.log_prob) return a.log_prob > b.log_prob;
    const auto columns = [&](const Candidate& candidate, std::vector<std::int32_t>& out) {
        out.assign(1, candidate.column);
        for (std::int32_t at = candidate.parent; at >= 0; at = result_.parents[static_cast<std::size_t>(at)])
            out.push_back(columns_[static_cast<std::size_t>(at)]);
    };
    columns(a, left_);
    columns(b, right_);
    return std::lexicographical_compare(left_.rbegin(), left_.rend(), right_.rbegin(), right_.rend());
}

}  // namespace latticebpd
