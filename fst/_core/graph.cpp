#include "graph.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

namespace latticebpd {

namespace {

constexpr std::size_t kChunk = 32;  // rows in flight between memory and cache

[[noreturn]] void refuse_cycle(std::uint32_t state) {
    throw std::invalid_argument("corrupt language model: more than 255 failure arcs in a row from state " + std::to_string(state) +
                                "; write the file again from its source");
}

std::uint32_t hash(std::uint64_t key, std::int32_t shift) {
    return static_cast<std::uint32_t>((key * 0x9E3779B97F4A7C15ull) >> shift);
}

}  // namespace

void Graph::assign(const Lattice& lattice, const Model* model) {
    lattice_ = &lattice;
    model_ = model;
    nodes_.clear();
    hits_.clear();
    const auto slots = static_cast<std::size_t>(lattice.slots());
    if (by_slot_.size() < slots) by_slot_.resize(slots);
    for (auto& nodes : by_slot_) nodes.clear();
    if (buckets_.empty() || ++generation_ == 0) {
        buckets_.assign(std::max<std::size_t>(buckets_.size(), 1024), Bucket{});
        generation_ = 1;
        hash_shift_ = 64 - std::countr_zero(buckets_.size());
    }
    if (marks_.size() < static_cast<std::size_t>(lattice.max_columns())) marks_.resize(static_cast<std::size_t>(lattice.max_columns()), 0);
}

std::int32_t Graph::node_of(std::int32_t slot, std::uint32_t state) {
    const std::uint64_t key = (static_cast<std::uint64_t>(slot) << 32) | state;
    const auto mask = static_cast<std::uint32_t>(buckets_.size() - 1);
    std::uint32_t at = hash(key, hash_shift_);
    for (; buckets_[at].generation == generation_; at = (at + 1) & mask)
        if (buckets_[at].key == key) return buckets_[at].node;
    if (nodes_.size() > static_cast<std::size_t>(INT32_MAX) / 2)
        throw std::invalid_argument("expected a lattice that reaches fewer than 2^30 language-model states; lower k or the number of slots");
    const auto index = static_cast<std::int32_t>(nodes_.size());
    buckets_[at] = {key, generation_, index};
    nodes_.push_back(Node{.state = state, .slot = slot});
    by_slot_[static_cast<std::size_t>(slot)].push_back(index);
    if (model_ != nullptr) model_->prefetch_state(state);
    if (2 * nodes_.size() > buckets_.size()) grow();
    return index;
}

void Graph::grow() {
    const std::size_t size = 4 * buckets_.size();
    buckets_.assign(size, Bucket{});
    generation_ = 1;
    hash_shift_ = 64 - std::countr_zero(size);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
        const std::uint64_t key = (static_cast<std::uint64_t>(nodes_[i].slot) << 32) | nodes_[i].state;
        std::size_t at = hash(key, hash_shift_);
        while (buckets_[at].generation == generation_) at = (at + 1) & (size - 1);
        buckets_[at] = {key, generation_, static_cast<std::int32_t>(i)};
    }
}

std::int32_t Graph::next_node(std::int32_t index, std::int32_t slot) {
    if (const Hit& known = hit(index); known.next_node != kNone) return known.next_node;
    const std::int32_t next = node_of(slot, hit(index).next_state);
    return hit(index).next_node = next;
}

void Graph::open(std::int32_t index) {
    for (int failures = 0; index != kNone; ++failures) {
        if (failures > Model::kMaxFailures) refuse_cycle(node(index).state);
        if (node(index).first_hit == kNone) read(index, model_ != nullptr ? model_->state(node(index).state) : StateRecord{});
        index = node(index).backoff_node;
    }
}

void Graph::open_slot(std::int32_t slot) {
    // Two passes over a chunk: the first waits for nothing but state records, which were prefetched when the nodes
    // were made, and sends for the arcs; the second finds these on their way. Backing off may add nodes to the list.
    const auto& list = by_slot_[static_cast<std::size_t>(slot)];
    const bool last = slot + 1 == lattice_->slots();
    for (std::size_t begin = 0; begin < list.size();) {
        const std::size_t end = std::min(list.size(), begin + kChunk);
        pending_.clear();
        for (std::size_t i = begin; i < end; ++i) {
            if (node(list[i]).first_hit != kNone) continue;
            pending_.push_back({list[i], {}});
            if (model_ == nullptr) continue;
            pending_.back().record = model_->state(node(list[i]).state);
            __builtin_prefetch(model_->arcs_at(pending_.back().record.first_arc));
        }
        for (const auto& [index, record] : pending_) {
            const auto first = hits_.size();
            read(index, record);
            if (!last)
                for (std::size_t h = first; h < hits_.size(); ++h) next_node(static_cast<std::int32_t>(h), slot + 1);
        }
        begin = end;
    }
}

void Graph::read(std::int32_t index, const StateRecord& record) {
    const auto [state, slot] = std::pair(node(index).state, node(index).slot);
    const auto first = static_cast<std::int32_t>(hits_.size());
    if (model_ == nullptr || state == model_->unigram_state()) {
        add_unigrams(slot);
    } else {
        const Row row = model_->row(state, record);
        const std::int32_t backoff = node_of(slot, row.backoff_state);
        node(index).backoff_node = backoff;
        node(index).backoff_cost = row.backoff_cost;
        match(row, state, slot);
    }
    if (hits_.size() > static_cast<std::size_t>(INT32_MAX))
        throw std::invalid_argument("expected a lattice that meets fewer than 2^31 n-grams; lower k or the number of slots");
    node(index).first_hit = first;
    node(index).num_hits = static_cast<std::int32_t>(hits_.size()) - first;
}

void Graph::add_unigrams(std::int32_t slot) {
    const Lattice::Slot& columns = lattice_->slot(slot);
    for (std::int32_t c = 0; c < columns.size; ++c) {
        if (model_ == nullptr) {
            hits_.push_back({c, 0, kNone, 0, 0});
        } else if (const std::int32_t label = lattice_->label(columns.first + c); label == Model::kNoLabel) {
            hits_.push_back({c, model_->unigram_state(), kNone, model_->unk_cost(), 0});
        } else {
            const ArcRecord& arc = model_->unigram_arc(label);
            hits_.push_back({c, static_cast<std::uint32_t>(arc.next_state), kNone, Model::cost(arc.cost), 0});
        }
    }
}

void Graph::match(const Row& row, std::uint32_t state, std::int32_t slot) {
    const Lattice::Slot& columns = lattice_->slot(slot);
    const auto add = [&](std::int32_t key, const ArcRecord& arc) {
        const std::uint32_t next_state = model_->checked_state(arc.next_state);
        const double cost = Model::cost(arc.cost);
        for (const std::int32_t column : lattice_->columns(columns, key)) hits_.push_back({column, next_state, kNone, cost, 0});
    };
    const auto num_keys = static_cast<std::uint32_t>(columns.num_keys);
    if (num_keys == 0) return;

    if (row.num_arcs <= 16 * num_keys) {  // few arcs: ask the slot for each
        std::int32_t previous = 0;
        for (std::uint32_t i = 0; i < row.num_arcs; ++i) {
            if (!lattice_->may_have(columns, row.label(i))) [[likely]]
                continue;
            const std::int32_t label = row.label(i), key = label > 0 ? lattice_->find(columns, label) : -1;
            if (key < 0) continue;
            if (label <= previous)
                throw std::invalid_argument("corrupt language model: expected the arcs of state " + std::to_string(state) +
                                            " in rising order of label; write the file again from its source");
            previous = label;
            add(key, row.arc(i));
        }
        return;
    }
    // Many arcs: one binary search per label, all in step, so that their cache misses overlap. Free of branches: the
    // searches of a row end after the same number of halvings.
    const std::span<const std::int32_t> keys = lattice_->keys(columns);
    search_.assign(num_keys, 0);
    for (std::uint32_t length = row.num_arcs; length > 1;) {
        const std::uint32_t half = length / 2;
        for (std::uint32_t i = 0; i < num_keys; ++i)
            search_[i] += half & -static_cast<std::uint32_t>(row.label(search_[i] + half) <= keys[i]);
        length -= half;
    }
    for (std::uint32_t i = 0; i < num_keys; ++i)
        if (row.label(search_[i]) == keys[i]) add(static_cast<std::int32_t>(i), row.arc(search_[i]));
}

void Graph::resolve(std::int32_t index, Step* steps) {
    if (++mark_ == 0) {
        std::fill(marks_.begin(), marks_.end(), 0);
        mark_ = 1;
    }
    double backed_off = 0;
    for (int failures = 0; index != kNone; ++failures) {
        if (failures > Model::kMaxFailures) refuse_cycle(node(index).state);
        const Node& node = this->node(index);
        for (std::int32_t h = node.first_hit; h < node.first_hit + node.num_hits; ++h) {
            const auto column = static_cast<std::size_t>(hit(h).column);
            if (marks_[column] == mark_) continue;
            marks_[column] = mark_;
            steps[column] = {backed_off + hit(h).cost, h};
        }
        backed_off += node.backoff_cost;
        index = node.backoff_node;
    }
}

}  // namespace latticebpd
