// Counts the n-grams of each order in a backoff automaton, which keeps no such table.
#pragma once

#include <cstdint>
#include <vector>

#include "model.hpp"

namespace latticebpd {

// Index o - 1 of the result belongs to order o; <s> counts as a unigram where it is a context. Reads all states and arcs.
// Throws std::invalid_argument for a corrupt automaton and for n-grams longer than kHighestOrder.
std::vector<std::uint64_t> count_ngrams(const Model& model);

constexpr std::size_t kHighestOrder = 255;

}  // namespace latticebpd
