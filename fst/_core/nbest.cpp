#include "nbest.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <tuple>

#include "ordering.hpp"

namespace latticebpd {

// Forward, slot by slot, every (slot, LM state) that a path can reach is opened; backward, every node gets the exact
// score of its best completion. With these as rest scores, the enumeration that follows never takes a wrong turn: each
// of the p paths is one walk through the slots. Nothing is assumed about weights (backoff weights may exceed 1).
const NbestSearch::Result& NbestSearch::run(const Lattice& lattice, const Model* model, std::uint32_t start_state, std::int64_t p, double alpha) {
    alpha_ = alpha;
    graph_.assign(lattice, model);
    const auto columns = static_cast<std::size_t>(lattice.max_columns());
    if (marks_.size() < columns) marks_.resize(columns, 0);
    if (steps_.size() < columns) steps_.resize(columns);
    const auto slots = static_cast<std::size_t>(lattice.slots());
    if (unigram_order_.size() < slots) unigram_order_.resize(slots);

    const std::int32_t root = graph_.node_of(0, start_state);
    for (std::int32_t t = 0; t < lattice.slots(); ++t) graph_.open_slot(t);
    for (std::int32_t t = lattice.slots(); t-- > 0;)
        for (const std::int32_t node : graph_.nodes_of_slot(t)) evaluate(node, 0);
    enumerate(root, p);
    collect();
    return result_;
}

// value(node) = max over columns of log_prob - alpha * cost + value(next). The node's own hits come first; of the
// backoff node's columns the best that the node has no arc for follows, and mostly that is its very best.
double NbestSearch::evaluate(std::int32_t index, int depth) {
    Graph::Node& node = graph_.node(index);
    if (node.best_column != Graph::kNone) return node.value;
    if (depth > Model::kMaxFailures)
        throw std::invalid_argument("corrupt language model: more than 255 failure arcs in a row; write the file again from its source");
    const double* const log_probs = graph_.lattice().log_probs(node.slot);
    double best = -std::numeric_limits<double>::infinity();
    std::int32_t best_column = Graph::kNone;
    std::uint64_t columns = 0;  // of the hits, modulo 64
    for (Graph::Hit& hit : graph_.hits(node)) {
        hit.value = log_probs[hit.column] - alpha_ * hit.cost + (hit.next_node != Graph::kNone ? graph_.node(hit.next_node).value : 0.0);
        columns |= std::uint64_t{1} << (hit.column % 64);
        best_column = hit.value > best ? hit.column : best_column;
        best = std::max(best, hit.value);
    }
    if (node.backoff_node == Graph::kNone) {
        sort_unigrams(node);
    } else {
        const double backoff = evaluate(node.backoff_node, depth + 1) - alpha_ * node.backoff_cost;
        const std::int32_t column = graph_.node(node.backoff_node).best_column;
        if ((columns >> (column % 64)) & 1) {
            const auto [other, other_column] = best_backed_off(node);
            if (other > best) std::tie(best, best_column) = std::pair(other, other_column);
        } else if (backoff > best) {
            std::tie(best, best_column) = std::pair(backoff, column);
        }
    }
    node.best_column = best_column;
    return node.value = best;
}

void NbestSearch::sort_unigrams(const Graph::Node& node) {
    auto& order = unigram_order_[static_cast<std::size_t>(node.slot)];
    order.resize(static_cast<std::size_t>(node.num_hits));
    unsorted_hits_.resize(order.size());
    std::iota(unsorted_hits_.begin(), unsorted_hits_.end(), node.first_hit);
    sort_into<std::int32_t>(unsorted_hits_, order, [&](std::int32_t a, std::int32_t b) {
        const double left = graph_.hit(a).value, right = graph_.hit(b).value;
        return left > right || (left == right && a < b);
    });
}

// The best of the columns that the node has no arc for, along the chain behind it.
std::pair<double, std::int32_t> NbestSearch::best_backed_off(const Graph::Node& node) {
    if (++mark_ == 0) {
        std::fill(marks_.begin(), marks_.end(), 0);
        mark_ = 1;
    }
    const auto marked = [&](std::int32_t column) -> std::uint32_t& { return marks_[static_cast<std::size_t>(column)]; };
    for (const Graph::Hit& hit : graph_.hits(node)) marked(hit.column) = mark_;
    std::pair<double, std::int32_t> best{-std::numeric_limits<double>::infinity(), Graph::kNone};
    double backed_off = -alpha_ * node.backoff_cost;
    for (std::int32_t at = node.backoff_node;;) {
        const Graph::Node& from = graph_.node(at);
        if (marked(from.best_column) != mark_) return std::max(best, {backed_off + from.value, from.best_column});
        if (from.backoff_node == Graph::kNone) {
            for (const std::int32_t h : unigram_order_[static_cast<std::size_t>(node.slot)])
                if (const Graph::Hit& hit = graph_.hit(h); marked(hit.column) != mark_) return std::max(best, {backed_off + hit.value, hit.column});
            return best;
        }
        for (const Graph::Hit& hit : graph_.hits(from)) {
            if (marked(hit.column) == mark_) continue;
            marked(hit.column) = mark_;
            best = std::max(best, {backed_off + hit.value, hit.column});
        }
        backed_off -= alpha_ * from.backoff_cost;
        at = from.backoff_node;
    }
}

void NbestSearch::rank(std::int32_t index) {
    std::int32_t& first = first_choice_[static_cast<std::size_t>(index)];
    if (first != Graph::kNone) return;
    first = static_cast<std::int32_t>(choices_.size());
    graph_.resolve(index, steps_.data());
    const Graph::Node& node = graph_.node(index);
    const auto size = static_cast<std::size_t>(graph_.lattice().slot(node.slot).size);
    const double* const log_probs = graph_.lattice().log_probs(node.slot);
    unsorted_choices_.resize(size);
    for (std::size_t c = 0; c < size; ++c) {
        const double step = log_probs[c] + alpha_ * -steps_[c].cost;
        const std::int32_t next = graph_.hit(steps_[c].hit).next_node;
        unsorted_choices_[c] = {step + (next != Graph::kNone ? graph_.node(next).value : 0.0), step, static_cast<std::int32_t>(c), next};
    }
    choices_.resize(choices_.size() + size);
    sort_into<Choice>(unsorted_choices_, std::span(choices_).last(size), [](const Choice& a, const Choice& b) {
        return (a.value > b.value) | ((a.value == b.value) & (a.column < b.column));
    });
}

// Higher bound first; among equals the candidate whose columns come first. Two candidates never share all columns, and
// neither prefix continues the other.
bool NbestSearch::before(const Candidate& a, const Candidate& b) {
    if (a.bound != b.bound) return a.bound > b.bound;
    const auto columns = [&](const Candidate& candidate, std::vector<std::int32_t>& out) {
        out.assign(1, choice(candidate).column);
        for (std::int32_t at = candidate.prefix; at != Graph::kNone; at = prefixes_[static_cast<std::size_t>(at)].parent)
            out.push_back(prefixes_[static_cast<std::size_t>(at)].column);
    };
    columns(a, left_);
    columns(b, right_);
    return std::lexicographical_compare(left_.rbegin(), left_.rend(), right_.rbegin(), right_.rend());
}

void NbestSearch::enumerate(std::int32_t root, std::int64_t p) {
    first_choice_.assign(graph_.num_nodes(), Graph::kNone);
    choices_.clear();
    prefixes_.clear();
    heap_.clear();
    complete_.clear();
    const auto later = [&](const Candidate& a, const Candidate& b) { return before(b, a); };
    rank(root);
    heap_.push_back({choices_[0].value, Graph::kNone, root, 0});
    while (!heap_.empty() && static_cast<std::int64_t>(complete_.size()) < p) {
        std::pop_heap(heap_.begin(), heap_.end(), later);
        Candidate at = heap_.back();
        heap_.pop_back();
        // Down to the end along the best columns, leaving at each slot the next best for later.
        while (true) {
            const std::int32_t slot = graph_.node(at.node).slot;
            const double score = at.prefix == Graph::kNone ? 0.0 : prefixes_[static_cast<std::size_t>(at.prefix)].score;
            const Choice chosen = choice(at);
            if (at.rank + 1 < graph_.lattice().slot(slot).size) {
                Candidate sibling = at;
                ++sibling.rank;
                sibling.bound = score + choice(sibling).value;
                heap_.push_back(sibling);
                std::push_heap(heap_.begin(), heap_.end(), later);
            }
            prefixes_.push_back({score + chosen.step, at.prefix, chosen.column});
            const auto prefix = static_cast<std::int32_t>(prefixes_.size() - 1);
            if (chosen.next_node == Graph::kNone) {
                complete_.push_back(prefix);
                break;
            }
            rank(chosen.next_node);
            at = {at.bound, prefix, chosen.next_node, 0};
        }
    }
}

// Bounds are rounded otherwise than scores are, so the last word on the order is the scores'.
void NbestSearch::collect() {
    const Lattice& lattice = graph_.lattice();
    const auto slots = static_cast<std::size_t>(lattice.slots());
    unsorted_.resize(complete_.size() * slots);
    order_.resize(complete_.size());
    for (std::size_t i = 0; i < complete_.size(); ++i) {
        std::int32_t at = complete_[i];
        for (std::size_t t = slots; t-- > 0; at = prefixes_[static_cast<std::size_t>(at)].parent)
            unsorted_[i * slots + t] = lattice.token(lattice.slot(static_cast<std::int32_t>(t)).first + prefixes_[static_cast<std::size_t>(at)].column);
        order_[i] = i;
    }
    const auto score = [&](std::size_t i) { return prefixes_[static_cast<std::size_t>(complete_[i])].score; };
    std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
        if (score(a) != score(b)) return score(a) > score(b);
        const auto path = [&](std::size_t i) { return unsorted_.begin() + static_cast<std::ptrdiff_t>(i * slots); };
        return std::lexicographical_compare(path(a), path(a + 1), path(b), path(b + 1));
    });
    result_.tokens.clear();
    result_.scores.clear();
    for (const std::size_t i : order_) {
        const auto path = unsorted_.begin() + static_cast<std::ptrdiff_t>(i * slots);
        result_.tokens.insert(result_.tokens.end(), path, path + static_cast<std::ptrdiff_t>(slots));
        result_.scores.push_back(score(i));
    }
}

}  // namespace latticebpd
