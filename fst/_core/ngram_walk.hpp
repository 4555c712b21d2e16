// Visits the n-grams of a backoff automaton, which stores them as arcs between histories.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
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
    std::optional<std::uint32_t> state;  // of the history that the n-gram is, if it is a context
};

// Calls visit(ngram) for every n-gram, order by order and in lexicographic order of tokens, and end_order() behind each
// order. unk_label is the label of <unk>, 0 for none. Where the automaton starts in the history <s>, <s> is visited as a
// unigram of cost Model::kMaxCost. Contexts are left empty unless kContexts is set: keeping them takes memory.
//
// The walk is breadth first from the empty context. The first arc to reach a state is that of its own context: the
// history hw is represented by its longest suffix that is a state, which is no longer than hw and equal to it only on
// h's own arc. Throws std::invalid_argument where that does not hold, for what the model finds corrupt, and for n-grams
// longer than kHighestOrder.
template <bool kContexts, typename Visit, typename EndOrder>
void walk_ngrams(const Model& model, std::int32_t unk_label, Visit visit, EndOrder end_order) {
    std::vector<std::uint32_t> layer{model.unigram_state()}, next_layer;
    std::vector<std::int32_t> contexts, next_contexts;  // of the states in layer, all of one length
    std::vector<std::uint8_t> met(model.num_states());  // the length of a state's history plus 1, 0 if not met yet
    met[model.unigram_state()] = 1;
    const bool has_bos = model.start() != model.unigram_state();
    if (has_bos) met[model.start()] = 2;
    std::size_t num_met = 1 + has_bos;

    for (std::size_t order = 1; !layer.empty(); ++order) {
        if (order > kHighestOrder) throw std::invalid_argument("expected n-grams of order 255 at most; is this a backoff model?");
        for (std::size_t i = 0; i < layer.size(); ++i) {
            const StateRecord record = model.state(layer[i]);
            const Row row = model.row(layer[i], record);
            std::span<const std::int32_t> context;
            if constexpr (kContexts) context = {contexts.data() + i * (order - 1), order - 1};

            auto enter = [&](std::int32_t token, std::uint32_t state) {
                next_layer.push_back(state);
                if constexpr (kContexts) {
                    next_contexts.insert(next_contexts.end(), context.begin(), context.end());
                    next_contexts.push_back(token);
                }
            };
            auto follow = [&](const ArcRecord& arc) {
                const std::int32_t token = arc.label == unk_label ? kUnk : arc.label - 1;
                const std::uint32_t next = model.checked_state(arc.next_state);
                VisitedNgram ngram{context, token, Model::cost(arc.cost), std::nullopt};
                if (met[next] == 0) {
                    met[next] = static_cast<std::uint8_t>(order + 1);  // 256 is 0, but no layer follows that one
                    ++num_met;
                    enter(token, next);
                    ngram.state = next;
                } else if (met[next] == order + 1) {
                    throw std::invalid_argument("expected one history for each state, got two that lead to state " +
                                                std::to_string(next) + "; this is no backoff model");
                }
                visit(ngram);
            };

            std::uint32_t unk = row.num_arcs;
            std::int32_t previous = 0;
            for (std::uint32_t arc = 0; arc < row.num_arcs; ++arc) {
                const std::int32_t label = row.label(arc);
                if (label <= previous)
                    throw std::invalid_argument("expected the arcs of state " + std::to_string(layer[i]) +
                                                " in rising order of label, got " + std::to_string(label) + " after " +
                                                std::to_string(previous));
                previous = label;
                if (label == unk_label) unk = arc;
            }
            // The markers come first: they are negative.
            if (unk < row.num_arcs) follow(row.arc(unk));
            if (std::isfinite(record.final_cost)) visit(VisitedNgram{context, kEos, Model::cost(record.final_cost), std::nullopt});
            if (order == 1 && has_bos) {
                enter(kBos, model.start());
                visit(VisitedNgram{context, kBos, Model::kMaxCost, model.start()});
            }
            for (std::uint32_t arc = 0; arc < row.num_arcs; ++arc)
                if (arc != unk) follow(row.arc(arc));
        }
        end_order();
        layer.swap(next_layer);
        contexts.swap(next_contexts);
        next_layer.clear();
        next_contexts.clear();
    }
    if (num_met != model.num_states())
        throw std::invalid_argument("expected n-grams that lead to every state, got " + std::to_string(model.num_states() - num_met) +
                                    " states without; this is no backoff model");
}

// The cost of the backoff weight of an n-gram, 0 where it is no context.
inline double backoff_cost(const Model& model, const VisitedNgram& ngram) { return ngram.state ? model.row(*ngram.state).backoff_cost : 0; }

// The number of n-grams of each order.
inline std::vector<std::uint64_t> count_ngrams(const Model& model, std::int32_t unk_label) {
    std::vector<std::uint64_t> counts;
    std::uint64_t count = 0;
    walk_ngrams<false>(
        model, unk_label, [&](const VisitedNgram&) { ++count; },
        [&] {
            // Contexts that have a backoff weight but no continuation are followed by no order of their own.
            if (count > 0 || counts.empty()) counts.push_back(count);
            count = 0;
        });
    return counts;
}

}  // namespace latticebpd
