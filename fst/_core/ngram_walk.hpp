// Visits the n-grams of a backoff automaton, which stores them as arcs between histories.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "model.hpp"

namespace latticebpd {

constexpr std::size_t kHighestOrder = 255;

// As in fst/table.py.
constexpr std::int32_t kBos = -2, kEos = -3, kUnk = -4;

struct VisitedNgram {
    std::span<const std::int32_t> context;  // tokens
    std::int32_t token;                     // or a marker
    double cost;
    double backoff_cost;  // 0 where the n-gram is no context
    bool is_context;
};

// Calls visit(ngram) for every n-gram, order by order and in lexicographic order of tokens, and end_order() behind each
// order. unk_label is the label of <unk>, 0 for none. Where the automaton starts in the history <s>, <s> is visited as a
// unigram of cost Model::kMaxCost.
//
// The walk is breadth first from the empty context. The first arc to reach a state is that of its own context: the
// history hw is represented by its longest suffix that is a state, which is no longer than hw and equal to it only on
// h's own arc. Throws std::invalid_argument where that does not hold, for what the model finds corrupt, and for n-grams
// longer than kHighestOrder.
template <typename Visit, typename EndOrder>
void walk_ngrams(const Model& model, std::int32_t unk_label, Visit visit, EndOrder end_order) {
    std::vector<std::uint8_t> depth(model.num_states());  // order in which a state was met, 0 if not yet
    std::vector<std::uint32_t> layer{model.unigram_state()}, next_layer;
    std::vector<std::int32_t> contexts, next_contexts;  // of the states in layer, all of one length
    depth[model.unigram_state()] = depth[model.start()] = 1;
    std::size_t met = 1 + (model.start() != model.unigram_state());
    for (std::size_t order = 1; !layer.empty(); ++order) {
        if (order > kHighestOrder) throw std::invalid_argument("expected a model of order 255 at most, got longer n-grams; is this a backoff model?");
        for (std::size_t i = 0; i < layer.size(); ++i) {
            const std::span<const std::int32_t> context{contexts.data() + i * (order - 1), order - 1};
            const StateRecord record = model.state(layer[i]);
            const Row row = model.row(layer[i], record);
            auto visit_arc = [&](std::int32_t token, double cost, std::uint32_t next, bool is_context) {
                double backoff_cost = 0;
                if (is_context) {
                    backoff_cost = model.row(next).backoff_cost;
                    next_layer.push_back(next);
                    next_contexts.insert(next_contexts.end(), context.begin(), context.end());
                    next_contexts.push_back(token);
                }
                visit(VisitedNgram{context, token, cost, backoff_cost, is_context});
            };
            auto visit_explicit = [&](const ArcRecord& arc) {
                const std::uint32_t next = model.checked_state(arc.next_state);
                const bool is_context = depth[next] == 0;
                if (depth[next] == order + 1)
                    throw std::invalid_argument("expected one history for each state, got two n-grams of order " + std::to_string(order) +
                                                " that lead to state " + std::to_string(next) + "; this is no backoff model");
                if (is_context) {
                    depth[next] = static_cast<std::uint8_t>(order < kHighestOrder ? order + 1 : 255);
                    ++met;
                }
                visit_arc(arc.label == unk_label ? kUnk : arc.label - 1, Model::cost(arc.cost), next, is_context);
            };
            std::uint32_t unk = row.num_arcs;
            for (std::uint32_t a = 0; unk_label != 0 && a < row.num_arcs; ++a)
                if (row.label(a) == unk_label) unk = a;
            if (unk < row.num_arcs) visit_explicit(row.arc(unk));
            if (std::isfinite(record.final_cost)) visit_arc(kEos, Model::cost(record.final_cost), 0, false);
            if (order == 1 && model.start() != model.unigram_state()) visit_arc(kBos, Model::kMaxCost, model.start(), true);
            std::int32_t previous = 0;
            for (std::uint32_t a = 0; a < row.num_arcs; ++a) {
                const ArcRecord arc = row.arc(a);
                if (arc.label <= previous)
                    throw std::invalid_argument("expected the arcs of state " + std::to_string(layer[i]) + " in rising order of label, got " +
                                                std::to_string(arc.label) + " after " + std::to_string(previous));
                previous = arc.label;
                if (a != unk) visit_explicit(arc);
            }
        }
        end_order();
        layer.swap(next_layer);
        contexts.swap(next_contexts);
        next_layer.clear();
        next_contexts.clear();
    }
    if (met != model.num_states())
        throw std::invalid_argument("expected n-grams that lead to every state, got " + std::to_string(model.num_states() - met) +
                                    " states without; this is no backoff model");
}

// The number of n-grams of each order.
inline std::vector<std::uint64_t> count_ngrams(const Model& model, std::int32_t unk_label) {
    std::vector<std::uint64_t> counts;
    std::uint64_t count = 0;
    walk_ngrams(
        model, unk_label, [&](const VisitedNgram&) { ++count; },
        [&] {
            // Contexts that have a backoff weight but no continuation are followed by no order of their own.
            if (count > 0 || counts.empty()) counts.push_back(count);
            count = 0;
        });
    return counts;
}

}  // namespace latticebpd
