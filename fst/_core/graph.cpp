#include "graph.hpp"

#include <algorithm>
#include <bit>

namespace fst_core {

namespace {

constexpr std::size_t kChunk = 32;  // rows in flight between memory and cache
constexpr std::size_t kPathStateBuckets = 512, kOriginBuckets = 64;

}  // namespace

void Graph::assign(const Lattice& lattice, std::size_t buckets, bool is_constrained) {
    lattice_ = &lattice;
    is_constrained_ = is_constrained;
    has_path_states_ = is_constrained || lattice.has_transitions();
    model_ = lattice.model();
    nodes_.clear();
    num_hits_ = 0;
    const std::size_t slots = lattice.slots();
    if (layers_.size() < slots) layers_.resize(slots);
    for (std::size_t t = 0; t < slots; ++t) {
        layers_[t].nodes.clear();
        layers_[t].by_state.clear(buckets);
    }
    steps_.resize(std::max<std::size_t>(steps_.size(), lattice.max_columns()));
    weights_.resize(steps_.size());
    path_states_.clear();
    if (has_path_states_) path_state_by_origin_.clear(kPathStateBuckets);
    if (is_constrained) origins_.clear(kOriginBuckets);
    num_origins_ = 0;
}

std::int32_t Graph::add_node(Layer& layer, std::int32_t slot, std::uint32_t state) {
    const auto index = layer.by_state.insert(state, static_cast<std::int32_t>(nodes_.size())).first;
    if (model_ != nullptr) model_->prefetch_state(state);
    if (nodes_.size() > static_cast<std::size_t>(INT32_MAX) / 2)
        refuse("expected a lattice that reaches fewer than 2^30 language-model states; lower k or the number of slots");
    nodes_.push_back(Node{.state = state, .slot = slot});
    layer.nodes.push_back(index);
    return index;
}

std::int32_t Graph::next_path_state(std::int32_t index, std::int32_t slot, std::int32_t constraint_state) {
    if (const Hit& known = hit(index); known.next != kNone) return known.next;
    const std::int32_t node = find_node(slot, hit(index).next_state);
    if (is_constrained_)  // a hit leads to several
        return find_path_state(node, lattice_->has_transitions() ? hit(index).column : kNone, constraint_state);
    return hit(index).next = find_path_state(node, hit(index).column);
}

std::int32_t Graph::origin_of(std::int32_t column, std::int32_t constraint_state) {
    const auto [index, added] = origins_.insert(key_of(column, constraint_state), num_origins_);
    num_origins_ += added;
    return index;
}

std::int32_t Graph::add_path_state(std::uint64_t key, std::int32_t node, std::int32_t column,
                                   std::int32_t constraint_state) {
    const auto index = path_state_by_origin_.insert(key, static_cast<std::int32_t>(path_states_.size())).first;
    path_states_.push_back({node, column, this->node(node).first_path_state, constraint_state});
    return this->node(node).first_path_state = index;
}

const double* Graph::weights(std::int32_t index) {
    const std::int32_t slot = slot_of(node_of(index));
    const double* const log_probs = lattice_->log_probs(slot);
    const std::int32_t size = lattice_->slot(slot).size;
    if (!lattice_->has_transitions() || path_state(index).column == kNone || size == 0) return log_probs;
    lattice_->transitions(slot, path_state(index).column, weights_.data());
    for (std::int32_t c = 0; c < size; ++c) weights_[c] += log_probs[c];
    return weights_.data();
}

void Graph::open(std::int32_t index) {
    for (int failures = 0; index != kNone; ++failures) {
        if (failures > Model::kMaxFailures) refuse_failures(node(index).state);
        if (node(index).first_hit == kNone)
            read(index, model_ != nullptr ? model_->state(node(index).state) : StateRecord{});
        index = node(index).backoff_node;
    }
}

std::int32_t Graph::open_all(std::uint32_t start_state) {
    const std::int32_t root = find_path_state(find_node(0, start_state), kNone);
    for (std::int32_t slot = 0; slot < lattice_->slots(); ++slot) open_slot(slot);
    return root;
}

void Graph::open_slot(std::int32_t slot) {
    // Two passes over a chunk: the first waits for nothing but state records, which were prefetched when the nodes
    // were added, and prefetches their arcs for the second. Backing off may add nodes to the list.
    const Layer& layer = layers_[slot];
    const std::int32_t* const targets = lattice_->targets(slot);
    const bool is_sausage = lattice_->is_sausage(), has_transitions = lattice_->has_transitions();
    for (std::size_t begin = 0; begin < layer.nodes.size();) {
        const std::size_t end = std::min(layer.nodes.size(), begin + kChunk);
        pending_.clear();
        for (std::size_t i = begin; i < end; ++i) {
            const std::int32_t index = layer.nodes[i];
            if (node(index).first_hit != kNone) continue;
            if (model_ == nullptr) {
                pending_.push_back({index, {}});
                continue;
            }
            const StateRecord record = model_->state(node(index).state);
            __builtin_prefetch(model_->arcs_at(record.first_arc));
            __builtin_prefetch(model_->arcs_at(record.first_arc) + 64);
            pending_.push_back({index, record});
        }
        for (const auto& [index, record] : pending_) {
            const auto first = num_hits_;
            read(index, record);
            if (!is_sausage) {
                for (std::size_t h = first; h < num_hits_; ++h)
                    if (const std::int32_t target = targets[hits_[h].column]; target != Lattice::kEnd)
                        hits_[h].next = find_node(target, hits_[h].next_state);
                continue;
            }
            if (slot + 1 == lattice_->slots()) continue;
            for (std::size_t h = first; h < num_hits_; ++h) hits_[h].next = find_node(slot + 1, hits_[h].next_state);
            if (!has_transitions) continue;
            for (std::size_t h = first; h < num_hits_; ++h)
                hits_[h].next = find_path_state(hits_[h].next, hits_[h].column);
        }
        begin = end;
    }
}

void Graph::read(std::int32_t index, const StateRecord& record) {
    const auto [state, slot] = std::pair(node(index).state, node(index).slot);
    const Lattice::Slot& columns = lattice_->slot(slot);
    const std::size_t first = num_hits_;
    if (const std::size_t most = first + columns.size; hits_.size() < most) hits_.resize(2 * most);
    if (model_ == nullptr || state == model_->unigram_state()) {
        add_unigrams(columns);
    } else {
        const Row row = model_->row(state, record);
        const std::int32_t backoff = find_node(slot, row.backoff_state);
        node(index).backoff_node = backoff;
        node(index).next_longer = node(backoff).first_longer;
        node(backoff).first_longer = index;
        node(index).backoff_cost = static_cast<float>(row.backoff_cost);
        if (row.num_arcs <= 8 * static_cast<std::uint32_t>(columns.num_keys)) match_by_scan(row, state, columns);
        else if (const LabelIndex* const index = model_->label_index(state, row); index != nullptr)
            match_by_index(row, *index, columns);
        else match_by_search(row, columns);
    }
    for (std::int32_t c = 0; c < columns.num_epsilons; ++c) add_hit(c, state, 0);
    if (num_hits_ > static_cast<std::size_t>(INT32_MAX))
        refuse("expected a lattice that meets fewer than 2^31 n-grams; lower k or the number of slots");
    node(index).first_hit = static_cast<std::int32_t>(first);
    node(index).num_hits = static_cast<std::int32_t>(num_hits_ - first);
}

void Graph::add_unigrams(const Lattice::Slot& columns) {
    for (std::int32_t c = columns.num_epsilons; c < columns.size; ++c) {
        if (model_ == nullptr) {
            add_hit(c, 0, 0);
        } else if (const std::int32_t label = lattice_->label(columns.first + c); label == Model::kNoLabel) {
            add_hit(c, model_->unigram_state(), static_cast<float>(Model::kMaxCost));
        } else {
            const ArcRecord& arc = model_->unigram_arc(label);
            add_hit(c, static_cast<std::uint32_t>(arc.next_state), static_cast<float>(Model::cost(arc.cost)));
        }
    }
}

inline void Graph::add_hit(const ArcRecord& arc, const Lattice::Slot& columns, std::int32_t key) {
    const std::uint32_t next_state = model_->checked_state(arc.next_state);
    const auto cost = static_cast<float>(Model::cost(arc.cost));
    for (const std::int32_t column : lattice_->columns(columns, key)) add_hit(column, next_state, cost);
}

// Few arcs: the slot's filter excludes most of them. Up to 64 results are collected before any is
// used: no processor predicts which arcs pass, so there is no branch for each.
void Graph::match_by_scan(const Row& row, std::uint32_t state, const Lattice::Slot& columns) {
    const std::uint8_t* const filter = lattice_->filter(columns);
    const std::uint32_t mask = columns.filter_mask;
    std::int32_t previous = 0;
    for (std::uint32_t begin = 0; begin < row.num_arcs; begin += 64) {
        const std::uint32_t count = std::min(64u, row.num_arcs - begin);
        const std::byte* const arcs = row.arcs + std::size_t{begin} * sizeof(ArcRecord);
        const auto passes = [=](std::uint32_t i) -> std::uint64_t {
            std::uint32_t label;
            std::memcpy(&label, arcs + i * sizeof(ArcRecord), sizeof label);
            return filter[label & mask];
        };
        std::uint64_t passed = 0;
        std::uint32_t i = 0;
        for (; i + 4 <= count; i += 4)
            passed |= (passes(i) | passes(i + 1) << 1 | passes(i + 2) << 2 | passes(i + 3) << 3) << i;
        for (; i < count; ++i) passed |= passes(i) << i;
        for (; passed != 0; passed &= passed - 1) {
            const ArcRecord arc = row.arc(begin + static_cast<std::uint32_t>(std::countr_zero(passed)));
            const std::int32_t key = arc.label > 0 ? lattice_->find(columns, arc.label) : kNone;
            if (key == kNone) continue;
            if (arc.label <= previous) refuse_order(state);
            previous = arc.label;
            add_hit(arc, columns, key);
        }
    }
}

// Many arcs of a row with an index of its labels.
void Graph::match_by_index(const Row& row, const LabelIndex& index, const Lattice::Slot& columns) {
    const std::span<const std::int32_t> keys = lattice_->keys(columns);
    for (std::size_t first = 0; first < keys.size(); first += 64) {
        std::uint64_t present = 0;
        for (std::size_t i = 0; i < std::min<std::size_t>(64, keys.size() - first); ++i)
            present |= std::uint64_t{index.has(keys[first + i])} << i;
        for (; present != 0; present &= present - 1) {
            const std::size_t key = first + std::countr_zero(present);
            add_hit(row.arc(index.arc(keys[key])), columns, static_cast<std::int32_t>(key));
        }
    }
}

// Many arcs: one binary search per label, several in step so that their cache misses overlap. Free of branches: the
// searches of a row end after the same number of halvings.
void Graph::match_by_search(const Row& row, const Lattice::Slot& columns) {
    constexpr std::size_t kInStep = 16;
    std::span<const std::int32_t> keys = lattice_->keys(columns);
    for (std::size_t first = 0; first < keys.size(); first += kInStep) {
        std::int32_t labels[kInStep];
        std::uint32_t arcs[kInStep] = {};
        for (std::size_t i = 0; i < kInStep; ++i) labels[i] = keys[std::min(first + i, keys.size() - 1)];
        for (std::uint32_t length = row.num_arcs; length > 1;) {
            const std::uint32_t half = length / 2;
            for (std::size_t i = 0; i < kInStep; ++i)
                arcs[i] += half & -static_cast<std::uint32_t>(row.label(arcs[i] + half) <= labels[i]);
            length -= half;
        }
        std::uint32_t hit = 0;
        for (std::size_t i = 0; i < kInStep; ++i)
            hit |= static_cast<std::uint32_t>(row.label(arcs[i]) == labels[i]) << i;
        if (keys.size() - first < kInStep) hit &= (1u << (keys.size() - first)) - 1;
        for (; hit != 0; hit &= hit - 1) {
            const std::size_t i = std::countr_zero(hit);
            add_hit(row.arc(arcs[i]), columns, static_cast<std::int32_t>(first + i));
        }
    }
}

// Histories from the shortest to the longest, each overwriting the columns that it has n-grams for.
const Graph::Step* Graph::resolve(std::int32_t index) {
    chain_.clear();
    for (double backed_off = 0; index != kNone;) {
        if (chain_.size() > Model::kMaxFailures) refuse_failures(node(index).state);
        const Node& node = this->node(index);
        chain_.emplace_back(&node, backed_off);
        backed_off += node.backoff_cost;
        index = node.backoff_node;
    }
    for (std::size_t i = chain_.size(); i-- > 0;) {
        const auto [node, backed_off] = chain_[i];
        for (std::int32_t h = node->first_hit; h < node->first_hit + node->num_hits; ++h)
            steps_[hit(h).column] = {backed_off + hit(h).cost, h, static_cast<std::int32_t>(chain_.size() - 1 - i)};
    }
    return steps_.data();
}

}  // namespace fst_core
