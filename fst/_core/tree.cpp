#include "tree.hpp"

#include <algorithm>
#include <cmath>

namespace fst_core {

namespace {

constexpr std::int64_t kMostNodes = 1 << 22;  // more take gigabytes, and no verifier looks at them
constexpr std::size_t kMostOpened = 1u << 28;

}  // namespace

void check_num_nodes(const Lattice& lattice, std::int64_t num_nodes) {
    if (num_nodes > kMostNodes && lattice.has_more_prefixes(kMostNodes))
        refuse("expected a tree of at most 2^22 nodes, got num_nodes = ", num_nodes, "; lower it");
}

void check_opened(std::size_t tokens) {
    if (tokens > kMostOpened) refuse("expected a tree that opens fewer than 2^28 tokens; lower num_nodes or k");
}

const Tree& TreeSearch::run(const Lattice& lattice, std::uint32_t start_state, std::int64_t num_nodes, double alpha) {
    check_num_nodes(lattice, num_nodes);
    alpha_ = alpha;
    graph_.assign(lattice, kTreeBuckets);
    first_of_.clear();
    conditionals_.clear();
    hits_.clear();
    return search_.run(*this, graph_.find_path_state(graph_.find_node(0, start_state), Graph::kNone), num_nodes);
}

// log q(column) = log softmax over the slot's columns of log_prob + transition - alpha * cost.
Followers TreeSearch::expand(State path_state) {
    const std::int32_t node = graph_.node_of(path_state);
    const Lattice::Slot& columns = graph_.lattice().slot(graph_.node(node).slot);
    if (first_of_.size() <= static_cast<std::size_t>(path_state))
        first_of_.resize(std::max(graph_.num_path_states(), std::size_t{64}), -1);
    if (const std::int32_t known = first_of_[path_state]; known >= 0) return {known, columns.size};
    graph_.open(node);
    const Graph::Step* const steps = graph_.resolve(node);
    const double* const weights = graph_.weights(path_state);
    check_opened(conditionals_.size());
    const auto first = static_cast<std::int32_t>(conditionals_.size());
    first_of_[path_state] = first;
    conditionals_.resize(conditionals_.size() + columns.size);
    double* const conditionals = conditionals_.data() + first;
    double best = kMinusInfinity;
    for (std::int32_t c = 0; c < columns.size; ++c) {
        conditionals[c] = weights[c] + alpha_ * -steps[c].cost;
        hits_.push_back(steps[c].hit);
        best = std::max(best, conditionals[c]);
    }
    if (best == kMinusInfinity) return {first, columns.size};  // every transition is masked
    double total = 0;
    for (std::int32_t c = 0; c < columns.size; ++c) total += std::exp(conditionals[c] - best);
    const double normaliser = best + std::log(total);
    for (std::int32_t c = 0; c < columns.size; ++c) conditionals[c] -= normaliser;
    return {first, columns.size};
}

std::int32_t TreeSearch::token(State path_state, std::int32_t follower) const {
    const std::int32_t column = follower - first_of_[path_state];
    return graph_.lattice().token(graph_.lattice().slot(graph_.slot_of(graph_.node_of(path_state))).first + column);
}

bool TreeSearch::next(State path_state, std::int32_t follower, State& out) {
    const std::int32_t slot = graph_.slot_of(graph_.node_of(path_state)) + 1;
    if (slot == graph_.lattice().slots()) return false;
    out = graph_.next_path_state(hits_[follower], slot);
    return true;
}

}  // namespace fst_core
