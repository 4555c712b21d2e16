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

std::int32_t column_of(const Lattice& lattice, std::int32_t slot, std::int32_t token) {
    const std::span<const std::int32_t> tokens = lattice.tokens(lattice.slot(slot));
    const auto at = std::ranges::lower_bound(tokens, token);
    return at != tokens.end() && *at == token ? static_cast<std::int32_t>(at - tokens.begin()) : Graph::kNone;
}

const Tree& TreeSearch::run(const Lattice& lattice, std::uint32_t start_state, std::int64_t num_nodes, double alpha,
                            Constraint* constraint) {
    check_num_nodes(lattice, num_nodes);
    alpha_ = alpha;
    constraint_ = constraint;
    graph_.assign(lattice, kTreeBuckets, constraint != nullptr);
    followers_.clear();
    conditionals_.clear();
    hits_.clear();
    return search_.run(*this, graph_.path_state_after(0, start_state, Constraint::kStart), num_nodes);
}

// log q(column) = log softmax over the slot's columns of log_prob + transition - alpha * cost.
Followers TreeSearch::expand(State path_state) {
    const std::int32_t node = graph_.node_of(path_state);
    const Lattice::Slot& columns = graph_.lattice().slot(graph_.node(node).slot);
    if (followers_.size() <= static_cast<std::size_t>(path_state))
        followers_.resize(std::max(graph_.num_path_states(), std::size_t{64}), {-1, 0});
    if (const Followers known = followers_[path_state]; known.first >= 0) return known;
    graph_.open(node);
    if (constraint_ != nullptr)
        if (const std::int32_t token = constraint_->forced(graph_.constraint_state_of(path_state)); token >= 0)
            return followers_[path_state] = expand_forced(path_state, token);
    const Graph::Step* const steps = graph_.resolve(node);
    const double* const weights = graph_.weights(path_state);
    check_opened(conditionals_.size());
    const auto first = static_cast<std::int32_t>(conditionals_.size());
    const Followers followers = followers_[path_state] = {first, columns.size};
    conditionals_.resize(conditionals_.size() + columns.size);
    double* const conditionals = conditionals_.data() + first;
    double best = kMinusInfinity;
    for (std::int32_t c = 0; c < columns.size; ++c) {
        conditionals[c] = weights[c] + alpha_ * -steps[c].cost;
        hits_.push_back(steps[c].hit);
    }
    if (constraint_ != nullptr)
        constraint_->apply(graph_.constraint_state_of(path_state), graph_.lattice().tokens(columns), conditionals);
    for (std::int32_t c = 0; c < columns.size; ++c) best = std::max(best, conditionals[c]);
    if (best == kMinusInfinity) return followers;  // every column is masked or illegal
    double total = 0;
    for (std::int32_t c = 0; c < columns.size; ++c) total += std::exp(conditionals[c] - best);
    const double normaliser = best + std::log(total);
    for (std::int32_t c = 0; c < columns.size; ++c) conditionals[c] -= normaliser;
    return followers;
}

Followers TreeSearch::expand_forced(State path_state, std::int32_t token) {
    const std::int32_t node = graph_.node_of(path_state);
    const std::int32_t column = column_of(graph_.lattice(), graph_.slot_of(node), token);
    const auto first = static_cast<std::int32_t>(conditionals_.size());
    conditionals_.push_back(forced_log_prob(*constraint_, graph_.constraint_state_of(path_state)));
    hits_.push_back(column == Graph::kNone ? Graph::kNone : graph_.resolve(node)[column].hit);
    return {first, 1};
}

std::int32_t TreeSearch::token(State path_state, std::int32_t follower) const {
    if (constraint_ != nullptr)
        if (const std::int32_t token = constraint_->forced(graph_.constraint_state_of(path_state)); token >= 0)
            return token;
    const std::int32_t column = follower - followers_[path_state].first;
    return graph_.lattice().token(graph_.lattice().slot(graph_.slot_of(graph_.node_of(path_state))).first + column);
}

bool TreeSearch::next(State path_state, std::int32_t follower, State& out) {
    const std::int32_t node = graph_.node_of(path_state), slot = graph_.slot_of(node) + 1;
    if (slot == graph_.lattice().slots()) return false;
    std::int32_t constraint_state = Constraint::kStart;
    if (constraint_ != nullptr)
        constraint_state = constraint_->next(graph_.constraint_state_of(path_state), token(path_state, follower));
    if (hits_[follower] != Graph::kNone) {
        out = graph_.next_path_state(hits_[follower], slot, constraint_state);
        return true;
    }
    const Model* const model = graph_.lattice().model();
    const std::uint32_t before = graph_.node(node).state;
    const std::uint32_t state =
        model == nullptr ? 0 : model->advance(before, model->label_of(token(path_state, follower))).next_state;
    out = graph_.path_state_after(slot, state, constraint_state);
    return true;
}

}  // namespace fst_core
