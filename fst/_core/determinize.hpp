// The deterministic lattice of the same token sequences, each at its best path's weight.
#pragma once

#include <vector>

#include "lattice.hpp"

namespace fst_core {

struct Arcs {
    std::vector<std::int64_t> offsets;
    std::vector<std::int32_t> tokens, targets;
    std::vector<double> log_probs;
};

// Weighted subset construction over max and + (Mohri 1997), epsilons removed on the way. Of each state at most one
// column carries a token, and at most one, without a token, leads to the end. Exact: weights that float32 holds sum
// exactly in float64. Throws std::invalid_argument where the result would take gigabytes, and for what
// ArcsView::check() refuses.
Arcs determinize(const ArcsView& lattice);

}  // namespace fst_core
