#include "tree.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace latticebpd {

// A child is never better than its parent, so the best prefixes come off a heap in order. Children wait behind the
// best of their siblings, and a path is only followed into the model once it is in the tree and has been overtaken by
// nothing.
const TreeSearch::Result& TreeSearch::run(const Lattice& lattice, const Model* model, std::uint32_t start_state, std::int64_t num_nodes,
                                          double alpha, std::span<const double> kept_log_mass) {
    alpha_ = alpha;
    kept_log_mass_ = kept_log_mass;
    graph_.assign(lattice, model);
    if (steps_.size() < static_cast<std::size_t>(lattice.max_columns())) steps_.resize(static_cast<std::size_t>(lattice.max_columns()));
    distribution_of_.clear();
    conditionals_.clear();
    hits_.clear();
    choices_.clear();
    heap_.clear();
    columns_.clear();
    result_.tokens.clear();
    result_.parents.clear();
    result_.log_probs.clear();

    const auto later = [&](const Candidate& a, const Candidate& b) { return before(b, a); };
    propose(-1, graph_.node_of(0, start_state));
    while (!heap_.empty()) {
        std::pop_heap(heap_.begin(), heap_.end(), later);
        Candidate at = heap_.back();
        heap_.pop_back();
        const auto found = static_cast<std::int32_t>(columns_.size());
        const std::int32_t column = choices_[static_cast<std::size_t>(at.first_choice + at.rank)].column;
        const std::int32_t slot = graph_.node(at.node).slot;
        columns_.push_back(column);
        result_.tokens.push_back(lattice.token(lattice.slot(slot).first + column));
        result_.parents.push_back(at.parent);
        result_.log_probs.push_back(at.log_prob);
        if (found + 1 == num_nodes) break;

        const std::int32_t node = at.node;
        if (++at.rank < lattice.slot(slot).size) {
            at.log_prob = choices_[static_cast<std::size_t>(at.first_choice + at.rank)].log_prob;
            heap_.push_back(at);
            std::push_heap(heap_.begin(), heap_.end(), later);
        }
        if (slot + 1 < lattice.slots()) {
            const std::int32_t hit = hits_[static_cast<std::size_t>(distribution(node) + column)];
            propose(found, graph_.next_node(hit, slot + 1));
        }
    }
    return result_;
}

void TreeSearch::propose(std::int32_t parent, std::int32_t node) {
    const std::int32_t first = distribution(node);
    const std::int32_t size = graph_.lattice().slot(graph_.node(node).slot).size;
    const double path = parent < 0 ? 0.0 : result_.log_probs[static_cast<std::size_t>(parent)];
    const auto first_choice = static_cast<std::int32_t>(choices_.size());
    for (std::int32_t c = 0; c < size; ++c) choices_.push_back({path + conditionals_[static_cast<std::size_t>(first + c)], c});
    std::sort(choices_.begin() + first_choice, choices_.end(),
              [](const Choice& a, const Choice& b) { return a.log_prob != b.log_prob ? a.log_prob > b.log_prob : a.column < b.column; });
    heap_.push_back({choices_[static_cast<std::size_t>(first_choice)].log_prob, parent, first_choice, 0, node});
    std::push_heap(heap_.begin(), heap_.end(), [&](const Candidate& a, const Candidate& b) { return before(b, a); });
}

// log q(column) = log softmax over the slot's columns of log_prob - alpha * cost, plus the slot's kept log mass.
std::int32_t TreeSearch::distribution(std::int32_t node) {
    if (distribution_of_.size() <= static_cast<std::size_t>(node)) distribution_of_.resize(std::max(graph_.num_nodes(), std::size_t{64}), -1);
    if (const std::int32_t known = distribution_of_[static_cast<std::size_t>(node)]; known >= 0) return known;
    graph_.open(node);
    graph_.resolve(node, steps_.data());
    const Lattice& lattice = graph_.lattice();
    const std::int32_t slot = graph_.node(node).slot;
    const Lattice::Slot& columns = lattice.slot(slot);
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
    const double kept = kept_log_mass_.empty() ? 0.0 : kept_log_mass_[static_cast<std::size_t>(slot)];
    for (std::int32_t c = 0; c < columns.size; ++c) {
        double& value = conditionals_[static_cast<std::size_t>(first + c)];
        value = value - normaliser + kept;
    }
    return distribution_of_[static_cast<std::size_t>(node)] = first;
}

// More probable first; among equals the path whose columns come first, a prefix before what continues it.
bool TreeSearch::before(const Candidate& a, const Candidate& b) {
    if (a.log_prob != b.log_prob) return a.log_prob > b.log_prob;
    const auto columns = [&](const Candidate& candidate, std::vector<std::int32_t>& out) {
        out.assign(1, choices_[static_cast<std::size_t>(candidate.first_choice + candidate.rank)].column);
        for (std::int32_t at = candidate.parent; at >= 0; at = result_.parents[static_cast<std::size_t>(at)])
            out.push_back(columns_[static_cast<std::size_t>(at)]);
    };
    columns(a, left_);
    columns(b, right_);
    return std::lexicographical_compare(left_.rbegin(), left_.rend(), right_.rbegin(), right_.rend());
}

}  // namespace latticebpd
