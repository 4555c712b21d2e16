// Weights of a Markov chain over each slot's arcs.
//
// Softmax over j of the scores makes a chain of them, p(j | i). With m_s the probability of the arcs of slot s
// together, as the drafter gives it,
//
//     arcs[0, j]           = log m_0 + log p(j)
//     arcs[s + 1, j]       = log m_(s + 1) + log sum_i w_i p(j | i)     w: the same sum of slot s
//     transitions[s, i, j] = log m_(s + 1) + log p(j | i) - arcs[s + 1, j]
//
// so that a path's weights add up to its log-probability in the chain, and the mass of a slot's arcs is the drafter's.
#pragma once

#include <cstddef>
#include <vector>

#include "operations.hpp"

namespace engine {

// log_probs, arcs: [slots, k]; start: [k]; pairs: [slots - 1, k, k] scores, which become transitions.
inline void chain_weights(const float* log_probs, const float* start, std::size_t slots, std::size_t k, float* pairs,
                          float* arcs, const Operations& operations) {
    std::vector<float> reached(k * k);  // [k, k]: of each arc from each arc before it
    const float first = operations.log_sum(start, k);
    for (std::size_t i = 0; i < k; ++i) arcs[i] = start[i] - first;
    for (std::size_t slot = 1; slot < slots; ++slot, pairs += k * k) {
        float* const own = arcs + slot * k;
        for (std::size_t i = 0; i < k; ++i) {
            const float total = operations.log_sum(pairs + i * k, k);
            for (std::size_t j = 0; j < k; ++j) reached[j * k + i] = own[i - k] + (pairs[i * k + j] -= total);
        }
        for (std::size_t j = 0; j < k; ++j) own[j] = operations.log_sum(&reached[j * k], k);
        for (std::size_t i = 0; i < k * k; ++i) pairs[i] -= own[i % k];
    }
    for (std::size_t slot = 0; slot < slots; ++slot) {
        const float mass = operations.log_sum(log_probs + slot * k, k);
        for (std::size_t i = 0; i < k; ++i) arcs[slot * k + i] += mass;
    }
}

}  // namespace engine
