#include "posteriors.hpp"

#include <algorithm>
#include <cmath>

namespace fst_core {

namespace {

constexpr std::size_t kBuckets = 16;

void add_log(double& sum, double term) {
    const double high = std::max(sum, term), low = std::min(sum, term);
    sum = low == kMinusInfinity ? high : high + std::log1p(std::exp(low - high));
}

}  // namespace

template <typename Visit>
void PosteriorSearch::each_step(std::int32_t slot, const Visit& visit) {
    const Lattice::Slot& columns = graph_.lattice().slot(slot);
    for (const std::int32_t node : graph_.nodes_of_slot(slot)) {
        const bool tied = graph_.lattice().has_transitions();
        const Graph::Step* steps = nullptr;
        for (std::int32_t at = tied ? graph_.node(node).first_path_state : node; at != Graph::kNone;
             at = tied ? graph_.path_state(at).next : Graph::kNone) {
            if (forward_[at] == kMinusInfinity) continue;  // only backed off to
            if (steps == nullptr) steps = graph_.resolve(node);
            const double* const weights = graph_.weights(at);
            for (std::int32_t c = 0; c < columns.size; ++c) {
                const double weight = weights[c] - alpha_ * steps[c].cost;
                if (weight > kMinusInfinity) visit(at, columns.first + c, weight, graph_.hit(steps[c].hit).next);
            }
        }
    }
}

const std::vector<double>& PosteriorSearch::run(const Lattice& lattice, std::uint32_t start_state, double alpha) {
    alpha_ = alpha;
    graph_.assign(lattice, kBuckets);
    const std::int32_t root = graph_.open_all(start_state);
    forward_.assign(graph_.num_path_states(), kMinusInfinity);
    backward_.assign(forward_.size(), kMinusInfinity);
    posteriors_.assign(lattice.num_columns(), kMinusInfinity);
    forward_[root] = 0;
    double total = kMinusInfinity;
    for (std::int32_t slot = 0; slot < lattice.slots(); ++slot)
        each_step(slot, [&](std::size_t from, std::size_t, double weight, std::int32_t next) {
            add_log(next == Graph::kNone ? total : forward_[next], forward_[from] + weight);
        });
    if (total == kMinusInfinity) return posteriors_;  // every path is masked
    for (std::int32_t slot = lattice.slots(); slot-- > 0;)
        each_step(slot, [&](std::size_t from, std::size_t column, double weight, std::int32_t next) {
            const double rest = weight + (next == Graph::kNone ? 0.0 : backward_[next]);
            add_log(backward_[from], rest);
            add_log(posteriors_[column], forward_[from] + rest - total);
        });
    return posteriors_;
}

}  // namespace fst_core
