// Posteriors of a lattice's columns under lattice and language model, exactly: forward and backward sums over their
// product.
#pragma once

#include <vector>

#include "graph.hpp"

namespace fst_core {

class PosteriorSearch {
  public:
    // [columns of all slots]: ln of the probability of all paths through each column; -inf where there is none. The
    // arguments are those of NbestSearch, and the lattice is any.
    const std::vector<double>& run(const Lattice& lattice, std::uint32_t start_state, double alpha);

  private:
    // Calls visit(path state, column among those of all slots, weight, next path state) for every step from a slot.
    template <typename Visit>
    void each_step(std::int32_t slot, const Visit& visit);

    Graph graph_;
    double alpha_ = 0;
    std::vector<double> forward_, backward_, posteriors_;
};

}  // namespace fst_core
