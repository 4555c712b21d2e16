// Visits the n-grams of a backoff automaton, which stores them as arcs between histories.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "model.hpp"

namespace fst_core {

constexpr std::size_t kHighestOrder = 255;
constexpr double kLn10 = 2.302585092994045684;
constexpr double kLog10Zero = -99.0;  // and below: log 0, in ARPA files

// As in fst/table.py.
constexpr std::int32_t kBos = -2, kEos = -3, kUnk = -4;

struct VisitedNgram {
    std::span<const std::int32_t> context;  // tokens
    std::int32_t token;                     // or a marker
    double cost;
    std::optional<std::uint32_t> state;  // of the history that the n-gram is, if it is a context
};

// Calls visit(ngram) for every n-gram, order by order and in lexicographic order of tokens, and end_order() after each
// order. Where the automaton starts in the history <s>, <s> is visited as a unigram of cost Model::kMaxCost. Contexts
// are left empty unless kContexts is set: keeping them takes memory.
//
// A backoff weight above 1 may give an n-gram that was added as a missing suffix a probability above 1, which ARPA does
// not hold. It repeats what backing off gives, nor do the n-grams that continue it: without `improper` they are all
// left out.
//
// The walk is breadth first from the empty context. The first arc to reach a state is that of its own context: the
// history hw is represented by its longest suffix that is a state, which is no longer than hw and equal to it only on
// h's own arc. Throws std::invalid_argument where that does not hold, for what the model finds corrupt, and for n-grams
// longer than kHighestOrder.
template <bool kContexts, typename Visit, typename EndOrder>
void walk_ngrams(const Model& model, bool improper, Visit visit, EndOrder end_order) {
    const std::int32_t unk_label = model.unk_label();
    std::vector<std::uint32_t> layer{model.unigram_state()}, next_layer;
    std::vector<std::int32_t> contexts, next_contexts;  // of the states in layer, all of one length
    std::vector<std::uint8_t> met(model.num_states());  // the length of a state's history plus 1, 0 if not met yet
    met[model.unigram_state()] = 1;
    const bool has_bos = model.start() != model.unigram_state();
    if (has_bos) met[model.start()] = 2;
    std::size_t num_met = 1 + has_bos;
    std::vector<bool> left_out(model.num_states());  // histories that are no n-grams of the table
    // Whether an n-gram only repeats what backing off gives, as far as float32 can tell.
    const auto repeats = [](double cost, double backed_off) {
        return std::abs(cost - backed_off) <= 1e-5 * std::max(1.0, std::abs(cost));
    };

    for (std::size_t order = 1; !layer.empty(); ++order) {
        if (order > kHighestOrder) refuse("expected n-grams of order 255 at most; is this a backoff model?");
        for (std::size_t i = 0; i < layer.size(); ++i) {
            const StateRecord record = model.state(layer[i]);
            const Row row = model.row(layer[i], record);
            std::span<const std::int32_t> context;
            if constexpr (kContexts) context = {contexts.data() + i * (order - 1), order - 1};
            // Whether an n-gram of this row is left out, given what it costs to back off instead.
            const auto left_out_here = [&](double cost, auto backed_off) {
                if (improper || !row.backs_off || (cost >= 0 && !left_out[layer[i]])) return false;
                const bool repeated = repeats(cost, row.backoff_cost + backed_off());
                if (!repeated && left_out[layer[i]])
                    refuse("expected n-grams of a probability of at most 1, got a higher one that leads to state ",
                           layer[i]);
                return repeated;
            };

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
                const bool omitted =
                    left_out_here(ngram.cost, [&] { return model.advance(row.backoff_state, arc.label).cost; });
                if (met[next] == 0) {
                    left_out[next] = omitted;
                    met[next] = static_cast<std::uint8_t>(order + 1);  // 256 is 0, but no layer follows that one
                    ++num_met;
                    enter(token, next);
                    ngram.state = next;
                } else if (met[next] == order + 1) {
                    refuse("expected one history for each state, got two that lead to state ", next,
                           "; this is no backoff model");
                }
                if (!omitted) visit(ngram);
            };

            std::uint32_t unk = row.num_arcs;
            std::int32_t previous = 0;
            for (std::uint32_t arc = 0; arc < row.num_arcs; ++arc) {
                const std::int32_t label = row.label(arc);
                if (label <= previous)
                    refuse("expected the arcs of state ", layer[i], " in rising order of label, got ", label, " after ",
                           previous);
                previous = label;
                if (!model.has_unigram(label))
                    refuse("expected n-grams of the unigrams' tokens, got one of label ", label,
                           "; this is no backoff model");
                if (label == unk_label) unk = arc;
            }
            if (std::isfinite(record.final_cost) && record.final_cost != 0 && !model.has_end())
                refuse("expected a final weight at the unigram state, because state ", layer[i],
                       " has one; this is no backoff model");
            // The markers come first: they are negative.
            if (unk < row.num_arcs) follow(row.arc(unk));
            if (model.has_end() && std::isfinite(record.final_cost) &&
                !left_out_here(Model::cost(record.final_cost), [&] { return model.final_cost(row.backoff_state); }))
                visit(VisitedNgram{context, kEos, Model::cost(record.final_cost), std::nullopt});
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
        refuse("expected n-grams that lead to every state, got ", model.num_states() - num_met,
               " states without; this is no backoff model");
}

// The cost of the backoff weight of an n-gram, 0 where it is no context.
inline double backoff_cost(const Model& model, const VisitedNgram& ngram) {
    return ngram.state ? model.row(*ngram.state).backoff_cost : 0;
}

// The number of n-grams of each order. Backoff weights of the longest n-grams count too: an order without n-grams
// follows, because tables and ARPA files give the highest order no weights.
inline std::vector<std::uint64_t> count_ngrams(const Model& model, bool improper) {
    std::vector<std::uint64_t> counts;
    std::uint64_t count = 0;
    bool weighted = false,
         weighted_before = true;  // whether an n-gram of this order, of the one before has a backoff weight
    walk_ngrams<false>(
        model, improper,
        [&](const VisitedNgram& ngram) {
            ++count;
            weighted = weighted || backoff_cost(model, ngram) != 0;
        },
        [&] {
            if (count > 0 || weighted_before) counts.push_back(count);
            weighted_before = weighted;
            weighted = false;
            count = 0;
        });
    return counts;
}

}  // namespace fst_core
