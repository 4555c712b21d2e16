#include "determinize.hpp"

#include <algorithm>
#include <map>

namespace fst_core {

namespace {

constexpr std::size_t kMostEntries = 1u << 24;  // arcs and members of subsets

using Weights = std::map<std::int32_t, double>;               // by state
using Subset = std::vector<std::pair<std::int32_t, double>>;  // by rising state; the best weight is 0, but in the first

void raise(Weights& weights, std::int32_t state, double weight) {
    const auto [entry, added] = weights.emplace(state, weight);
    if (!added) entry->second = std::max(entry->second, weight);
}

class Determinizer {
  public:
    explicit Determinizer(const ArcsView& lattice) : lattice_(lattice), pending_(lattice.slots()) {}

    // Subsets in the order of their lowest state, which rises along every arc: so the order is topological.
    Arcs run() {
        lattice_.check();
        add({{0, 0.0}});
        for (std::size_t lowest = 0; lowest < pending_.size(); ++lowest)
            for (const auto& [subset, id] : pending_[lowest]) {
                rank_[id] = static_cast<std::int32_t>(arcs_.offsets.size());
                arcs_.offsets.push_back(static_cast<std::int64_t>(arcs_.tokens.size()));
                expand(subset);
            }
        arcs_.offsets.push_back(static_cast<std::int64_t>(arcs_.tokens.size()));
        for (std::int32_t& target : arcs_.targets)
            if (target != Lattice::kEnd) target = rank_[target];
        return std::move(arcs_);
    }

  private:
    template <typename Visit>
    void each_arc(std::int32_t state, const Visit& visit) const {
        for (std::int64_t i = lattice_.offsets[state]; i < lattice_.offsets[state + 1]; ++i)
            visit(lattice_.tokens[i], lattice_.log_probs[i], lattice_.targets[i]);
    }

    // The number of the subset that epsilons close, and its best weight; kEnd where it has no arcs but epsilons.
    std::pair<std::int32_t, double> add(Weights weights) {
        Subset subset;
        double best = kMinusInfinity;
        for (auto entry = weights.begin(); entry != weights.end();
             ++entry) {  // what is added on the way comes later in the order
            const auto [state, weight] = *entry;
            bool matters = false;
            each_arc(state, [&, weight = weight](std::int32_t token, double log_prob, std::int32_t target) {
                if (token == Lattice::kEpsilon && target != Lattice::kEnd) raise(weights, target, weight + log_prob);
                else matters = true;
            });
            if (!matters) continue;
            subset.emplace_back(state, weight);
            best = std::max(best, weight);
        }
        if (subset.empty()) return {Lattice::kEnd, best};
        if (!rank_.empty())  // the first subset has no arc before it that could carry its weight
            for (auto& [state, weight] : subset) weight -= best;
        const std::int32_t lowest = subset.front().first;
        count(subset.size());
        const auto [entry, added] =
            pending_[lowest].emplace(std::move(subset), static_cast<std::int32_t>(rank_.size()));
        if (added) rank_.push_back(0);
        return {entry->second, best};
    }

    void expand(const Subset& subset) {
        std::map<std::int32_t, Weights> following;  // by token
        double end = kMinusInfinity;
        for (const auto& [state, weight] : subset)
            each_arc(state, [&, weight = weight](std::int32_t token, double log_prob, std::int32_t target) {
                if (token != Lattice::kEpsilon) raise(following[token], target, weight + log_prob);
                else if (target == Lattice::kEnd) end = std::max(end, weight + log_prob);
            });
        if (end > kMinusInfinity) add_arc(Lattice::kEpsilon, end, Lattice::kEnd);
        for (auto& [token, weights] : following) {
            const auto [target, best] = add(std::move(weights));
            if (target != Lattice::kEnd) add_arc(token, best, target);
        }
    }

    void add_arc(std::int32_t token, double log_prob, std::int32_t target) {
        count(1);
        arcs_.tokens.push_back(token);
        arcs_.log_probs.push_back(log_prob);
        arcs_.targets.push_back(target);
    }

    void count(std::size_t entries) {
        if ((entries_ += entries) > kMostEntries)
            refuse("expected a lattice whose deterministic form has fewer than 2^24 arcs; prune the lattice");
    }

    const ArcsView& lattice_;
    std::vector<std::map<Subset, std::int32_t>> pending_;  // subsets and their numbers, by lowest state
    std::vector<std::int32_t> rank_;                       // [numbers] in the order of expansion
    std::size_t entries_ = 0;
    Arcs arcs_;
};

}  // namespace

Arcs determinize(const ArcsView& lattice) { return Determinizer(lattice).run(); }

}  // namespace fst_core
