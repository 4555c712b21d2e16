// AutomatonBuilder::close_suffixes(): the n-grams that a pruned model lacks although longer ones end in them.
//
// An automaton needs them: the state of a history backs off to that of the history one word shorter. An added n-gram hw
// gets the probability it has anyway by backing off, so every score stays as it was.

#include <algorithm>
#include <unordered_map>

#include "automaton_builder.hpp"

namespace fst_core {

namespace {

// N-grams are known by their rows until all additions are merged; those added are numbered on from the last row.
struct OrderWithAdditions {
    std::vector<std::uint32_t> suffixes;                     // of every n-gram, one order below
    std::unordered_map<std::uint64_t, std::uint32_t> added;  // by context and label
};

std::uint64_t key(std::uint32_t context, std::int32_t label) {
    return std::uint64_t{context} << 32 | static_cast<std::uint32_t>(label);
}

}  // namespace

void AutomatonBuilder::restore_contexts() {
    for (std::size_t lower = 0; lower < orders_.size(); ++lower) {
        Records<Ngram>& ngrams = orders_[lower].ngrams;
        if (lower == 0) {
            for (Ngram& ngram : ngrams) ngram.context = 0;
            continue;
        }
        const std::vector<std::uint32_t>& first = orders_[lower - 1].first;
        for (std::uint32_t row = 0; row + 1 < first.size(); ++row)
            for (std::uint32_t i = first[row]; i < first[row + 1]; ++i) ngrams[i].context = row;
    }
}

void AutomatonBuilder::close_suffixes() {
    std::vector<OrderWithAdditions> extended(orders_.size());
    std::vector<std::size_t> sizes;
    for (const Order& order : orders_) sizes.push_back(order.ngrams.size());

    // The n-gram of order lower + 1 with this context and label, added if need be, and its suffixes with it.
    auto ensure = [&](auto& self, std::size_t lower, std::uint32_t context, std::int32_t label) -> std::uint32_t {
        Records<Ngram>& ngrams = orders_[lower].ngrams;
        if (lower == 0 || context < sizes[lower - 1])
            if (const Ngram* ngram = find(lower, context, label); ngram != nullptr)
                return static_cast<std::uint32_t>(ngram - ngrams.begin());
        if (lower == 0) refuse("label ", label, " occurs in longer n-grams but not among the unigrams");
        OrderWithAdditions& order = extended[lower];
        if (const auto entry = order.added.find(key(context, label)); entry != order.added.end()) return entry->second;
        const std::uint32_t suffix =
            self(self, lower - 1, lower == 1 ? 0 : extended[lower - 1].suffixes[context], label);
        if (ngrams.size() == kNone) refuse("expected fewer than 2^32 - 1 n-grams of one order");
        const auto row = static_cast<std::uint32_t>(ngrams.size());
        const float cost = orders_[lower - 1].ngrams[context].backoff + orders_[lower - 1].ngrams[suffix].cost;
        ngrams.push_back({context, label, cost, 0});
        order.added.emplace(key(context, label), row);
        order.suffixes.push_back(suffix);
        return row;
    };
    extended[0].suffixes.assign(sizes[0], 0);
    for (std::size_t lower = 1; lower < orders_.size(); ++lower)
        for (std::size_t row = 0; row < sizes[lower]; ++row) {
            const Ngram ngram = orders_[lower].ngrams[row];
            const std::uint32_t shorter = lower == 1 ? 0 : extended[lower - 1].suffixes[ngram.context];
            extended[lower].suffixes.push_back(ensure(ensure, lower - 1, shorter, ngram.label));
        }

    std::vector<std::uint32_t> moved;  // the new row of every n-gram one order below
    for (std::size_t lower = 0; lower < orders_.size(); ++lower) {
        Records<Ngram>& ngrams = orders_[lower].ngrams;
        std::vector<std::uint32_t> by_row(ngrams.size());
        for (std::uint32_t row = 0; row < ngrams.size(); ++row) {
            by_row[row] = row;
            if (lower > 0) ngrams[row].context = moved[ngrams[row].context];
        }
        std::ranges::sort(by_row, [&](std::uint32_t a, std::uint32_t b) { return ngrams[a] < ngrams[b]; });
        moved.resize(ngrams.size());
        Records<Ngram> sorted;
        for (const std::uint32_t row : by_row) {
            moved[row] = static_cast<std::uint32_t>(sorted.size());
            sorted.push_back(ngrams[row]);
        }
        ngrams.swap(sorted);
        if (lower > 0) index_continuations(lower);
    }
}

}  // namespace fst_core
