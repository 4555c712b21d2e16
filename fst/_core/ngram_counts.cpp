#include "ngram_counts.hpp"

#include <cmath>
#include <stdexcept>

namespace latticebpd {

// Breadth first from the empty context. The first arc to reach a state is that of its own context: the history hw is
// represented by its longest suffix that is a state, which is no longer than hw and equal to it only on h's own arc.
std::vector<std::uint64_t> count_ngrams(const Model& model) {
    std::vector<bool> seen(model.num_states());
    seen[model.unigram_state()] = seen[model.start()] = true;
    std::vector<std::uint32_t> layer{model.unigram_state()}, longer;
    std::vector<std::uint64_t> counts;
    while (!layer.empty()) {
        if (counts.size() == kHighestOrder)
            throw std::invalid_argument("expected a model of order 255 at most, got longer n-grams; is this a backoff model?");
        std::uint64_t count = 0;
        for (const std::uint32_t state : layer) {
            const StateRecord record = model.state(state);
            const Row row = model.row(state, record);
            count += row.num_arcs + std::isfinite(record.final_cost);
            for (std::uint32_t i = 0; i < row.num_arcs; ++i) {
                const std::uint32_t next = model.checked_state(row.arc(i).next_state);
                if (seen[next]) continue;
                seen[next] = true;
                longer.push_back(next);
            }
        }
        if (counts.empty() && model.start() != model.unigram_state()) {
            ++count;
            longer.push_back(model.start());
        }
        // Contexts that have a backoff weight but no continuation end the model without n-grams of their own.
        if (count > 0 || counts.empty()) counts.push_back(count);
        layer.swap(longer);
        longer.clear();
    }
    return counts;
}

}  // namespace latticebpd
