// Lattice x n-gram model with failure arcs resolved, built as far as a search reads it.
//
// A node is a pair (slot, LM state): the paths that have passed the slots before and left that history. What the next
// slot's columns cost there is held sparsely: the columns that the state has arcs for (*hits*), and for all others the
// node of its backoff state at the same slot plus the cost of backing off. So a chain
//     (x u v) -> (u v) -> (v) -> unigram
// is looked up once per state, however many histories share its end, and the row of the unigram state, which has
// every column, closes each chain.
//
// What follows a path depends on its *path state*: its node, the column that led there where the lattice has
// transitions, and the state of a constraint where there is one. Rows of costs are the nodes' in all cases; with
// neither a path state is its node, under the same number.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hash_table.hpp"
#include "lattice.hpp"
#include "model.hpp"

namespace fst_core {

class Graph {
  public:
    static constexpr std::int32_t kNone = -1;

    struct Hit {
        std::int32_t column;  // of the slot
        std::uint32_t next_state;
        std::int32_t next;  // path state; kNone until asked for, and at the lattice's end
        float cost;         // -ln p, without the backoffs that lead here
    };
    struct Node {
        std::uint32_t state;
        std::int32_t slot;
        std::int32_t backoff_node = kNone;  // kNone at the unigram state
        std::int32_t first_hit = kNone;     // kNone until opened
        std::int32_t num_hits = 0;
        float backoff_cost = 0;
        std::int32_t first_longer = kNone;  // the nodes that back off to this one: a list
        std::int32_t next_longer = kNone;
        std::int32_t first_path_state = kNone;  // a list, where the lattice has transitions
    };
    struct PathState {
        std::int32_t node;
        std::int32_t column;  // of the slot before; kNone at the start, after a token that is no column, and untied
        std::int32_t next;    // another path state of the node
        std::int32_t constraint_state;
    };
    // One column as seen from a node, everything resolved.
    struct Step {
        double cost;         // -ln p(column's token | node's history), summed along the failure arcs in order
        std::int32_t hit;    // whose next path state the step leads to
        std::int32_t level;  // failure arcs below the history of the n-gram used: 0 for a unigram
    };

    // Forgets the nodes of the lattice before; keeps the memory. Without a model every step costs 0. Half of `buckets`,
    // a power of two, is how many nodes a slot will mostly have. is_constrained: path states have constraint states.
    void assign(const Lattice& lattice, std::size_t buckets, bool is_constrained = false);

    std::int32_t find_node(std::int32_t slot, std::uint32_t state) {
        Layer& layer = layers_[slot];
        const std::int32_t known = layer.by_state.find(state);
        return known != kNone ? known : add_node(layer, slot, state);
    }
    // Reads the node's row, and those that it backs off to.
    void open(std::int32_t node);
    // Opens every node of a slot, and adds the path states that they lead to.
    void open_slot(std::int32_t slot);
    // Opens every slot from `start_state` on; returns the path state there.
    std::int32_t open_all(std::uint32_t start_state);
    // Where a hit of a sausage leads; `slot` is the one after the hit's own.
    std::int32_t next_path_state(std::int32_t hit, std::int32_t slot, std::int32_t constraint_state = 0);
    // `column`: of the slot before, or kNone.
    std::int32_t find_path_state(std::int32_t node, std::int32_t column, std::int32_t constraint_state = 0) {
        if (!has_path_states_) return node;
        const std::int32_t origin = is_constrained_ ? origin_of(column, constraint_state) : column;
        const std::int32_t known = path_state_by_origin_.find(key_of(node, origin));
        return known != kNone ? known : add_path_state(key_of(node, origin), node, column, constraint_state);
    }
    // Where a token that is no column of the slot before leads.
    std::int32_t path_state_after(std::int32_t slot, std::uint32_t state, std::int32_t constraint_state) {
        return find_path_state(find_node(slot, state), kNone, constraint_state);
    }
    std::int32_t node_of(std::int32_t path_state) const {
        return has_path_states_ ? path_states_[path_state].node : path_state;
    }
    std::int32_t constraint_state_of(std::int32_t path_state) const {
        return is_constrained_ ? path_states_[path_state].constraint_state : 0;
    }
    const PathState& path_state(std::int32_t index) const { return path_states_[index]; }
    std::size_t num_path_states() const { return has_path_states_ ? path_states_.size() : nodes_.size(); }
    // log_prob and transition of every column of the next slot; valid until the next call.
    const double* weights(std::int32_t path_state);

    std::int32_t slot_of(std::int32_t node) const { return nodes_[node].slot; }
    Node& node(std::int32_t index) { return nodes_[index]; }
    Hit& hit(std::int32_t index) { return hits_[index]; }
    std::span<Hit> hits(const Node& node) {
        return {hits_.data() + node.first_hit, static_cast<std::size_t>(node.num_hits)};
    }
    std::span<const std::int32_t> nodes_of_slot(std::int32_t slot) const { return layers_[slot].nodes; }
    const Lattice& lattice() const { return *lattice_; }

    // All columns of an opened node; valid until the next call.
    const Step* resolve(std::int32_t node);

  private:
    struct Layer {  // the nodes of one slot, in order of addition, and by state
        std::vector<std::int32_t> nodes;
        HashTable<std::uint32_t> by_state;
    };
    struct Pending {
        std::int32_t node;
        StateRecord record;
    };
    void add_hit(std::int32_t column, std::uint32_t next_state, float cost) {
        hits_[num_hits_++] = {column, next_state, kNone, cost};
    }
    std::int32_t add_node(Layer& layer, std::int32_t slot, std::uint32_t state);
    static std::uint64_t key_of(std::int32_t high, std::int32_t low) {
        return std::uint64_t{static_cast<std::uint32_t>(high)} << 32 | static_cast<std::uint32_t>(low);
    }
    std::int32_t origin_of(std::int32_t column, std::int32_t constraint_state);
    std::int32_t add_path_state(std::uint64_t key, std::int32_t node, std::int32_t column,
                                std::int32_t constraint_state);
    void read(std::int32_t node, const StateRecord& record);
    void add_unigrams(const Lattice::Slot& columns);
    void match_by_scan(const Row& row, std::uint32_t state, const Lattice::Slot& columns);
    void match_by_index(const Row& row, const LabelIndex& index, const Lattice::Slot& columns);
    void match_by_search(const Row& row, const Lattice::Slot& columns);
    void add_hit(const ArcRecord& arc, const Lattice::Slot& columns, std::int32_t key);

    const Lattice* lattice_ = nullptr;
    const Model* model_ = nullptr;
    std::vector<Node> nodes_;
    std::vector<Hit> hits_;  // num_hits_ of them, and room for a slot's columns more
    std::size_t num_hits_ = 0;
    std::vector<Layer> layers_;
    std::vector<PathState> path_states_;
    HashTable<std::uint64_t> path_state_by_origin_;  // by node, and column or index of column and constraint state
    HashTable<std::uint64_t> origins_;               // by column and constraint state
    std::int32_t num_origins_ = 0;
    bool has_path_states_ = false, is_constrained_ = false;
    std::vector<Pending> pending_;
    std::vector<Step> steps_;      // [column]: what resolve() returns
    std::vector<double> weights_;  // [column]: what weights() returns
    std::vector<std::pair<const Node*, double>>
        chain_;  // scratch of resolve(): nodes, and what backing off to them costs
};

}  // namespace fst_core
