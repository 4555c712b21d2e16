#include "nbest.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace fst_core {

namespace {

constexpr std::size_t kBuckets = 512;  // a slot of a sausage: cheap to clear, and they stay in the first-level cache
// More take gigabytes, and no verifier looks at them.
constexpr std::int64_t kMostPaths = 1 << 22;
constexpr std::size_t kMostConstraintStates = 1u << 13;
constexpr std::size_t kMostPrefixes = 1u << 26, kMostChoices = 1u << 28;
constexpr std::size_t kFewBuckets = 8;  // a slot of another lattice
constexpr std::size_t kLanes = 4;       // rows are padded to a multiple

using Pair = double __attribute__((vector_size(2 * sizeof(double))));

Pair pair_at(const double* numbers) {
    Pair pair;
    std::memcpy(&pair, numbers, sizeof pair);
    return pair;
}

// Four running maxima, two to a register: a maximum that waits for the one before is slow.
template <typename At>
double highest(std::size_t size, const At& at) {
    Pair a = at(0), b = at(2);
    for (std::size_t c = kLanes; c < size; c += kLanes) {
        a = at(c) > a ? at(c) : a;
        b = at(c + 2) > b ? at(c + 2) : b;
    }
    a = a > b ? a : b;
    return std::max(a[0], a[1]);
}

double highest(const std::vector<double>& row) {
    return highest(row.size(), [&](std::size_t c) { return pair_at(row.data() + c); });
}

}  // namespace

// Forward, slot by slot, every (slot, LM state) that a path can reach is opened; backward, every path state gets the
// exact score of its best completion. With these as rest scores, the enumeration that follows never takes a wrong turn:
// each of the p paths is one walk through the slots. Nothing is assumed about weights (backoff weights may exceed 1).
const NbestSearch::Result& NbestSearch::run(const Lattice& lattice, std::uint32_t start_state, std::int64_t p,
                                            double alpha, Constraint* constraint) {
    if (p > kMostPaths && lattice.has_more_paths(kMostPaths))
        refuse("expected a search for at most 2^22 paths, got p = ", p, "; lower it");
    alpha_ = alpha;
    has_transitions_ = lattice.has_transitions();
    graph_.assign(lattice, lattice.is_sausage() ? kBuckets : kFewBuckets, constraint != nullptr);
    choices_.clear();
    std::int32_t root;
    if (constraint == nullptr) {
        root = graph_.open_all(start_state);
        values_.resize(graph_.num_path_states());
        for (std::int32_t t = lattice.slots(); t-- > 0;) evaluate_slot(t);
        first_choice_.assign(graph_.num_path_states(), Graph::kNone);
    } else {
        root = evaluate_legal(start_state, *constraint);
    }
    enumerate(root, p);
    collect();
    return result_;
}

// Under a constraint a hit leads to a path state for each constraint state, so choices are made of every path state at
// once. Path states are numbered slot by slot, as they are reached: backward by number, values are exact. States of an
// automaton that never are equal, as a parser's, grow with the number of paths: the search ends before the slot that
// has too many.
std::int32_t NbestSearch::evaluate_legal(std::uint32_t start_state, Constraint& constraint) {
    const std::int32_t root = graph_.path_state_after(0, start_state, Constraint::kStart);
    legal_by_state_.clear(kBuckets);
    legal_gains_.clear();
    legal_next_.clear();
    first_choice_.clear();
    const auto slot_of = [&](std::int32_t index) { return graph_.slot_of(graph_.node_of(index)); };
    bool complete = false;
    std::int32_t num_states = 0, last = 0, begin = 0;  // the slot at hand, and the first of its states
    for (; num_states < static_cast<std::int32_t>(graph_.num_path_states()); ++num_states) {
        if (slot_of(num_states) != last) {
            begin = num_states;
            last = slot_of(num_states);
        }
        if (last > 0 && constraint.num_states() > kMostConstraintStates) {
            complete = false;
            num_states = begin;
            break;
        }
        expand_legal(num_states, constraint);
        for (std::size_t i = first_choice_[num_states]; i < choices_.size(); ++i)
            complete |= choices_[i].next == Graph::kNone && choices_[i].step > kMinusInfinity;
    }
    const std::int32_t end = complete ? graph_.lattice().slots() : last;
    values_.assign(num_states, kMinusInfinity);
    for (std::int32_t index = num_states; index-- > 0;) {
        const std::int32_t slot = slot_of(index);
        Choice* const choices = choices_.data() + first_choice_[index];
        for (std::int32_t c = 0; c < graph_.lattice().slot(slot).size; ++c) {
            if (slot + 1 == end) choices[c].next = Graph::kNone;
            choices[c].value = choices[c].step + (choices[c].next != Graph::kNone ? values_[choices[c].next] : 0.0);
            values_[index] = std::max(values_[index], choices[c].value);
        }
    }
    return root;
}

void NbestSearch::expand_legal(std::int32_t index, Constraint& constraint) {
    const std::int32_t node = graph_.node_of(index), slot = graph_.slot_of(node);
    const std::int32_t state = graph_.constraint_state_of(index);
    const Lattice& lattice = graph_.lattice();
    const std::span<const std::int32_t> tokens = lattice.tokens(lattice.slot(slot));
    const auto [first, added] = legal_by_state_.insert(
        std::uint64_t{static_cast<std::uint32_t>(state)} << 32 | static_cast<std::uint32_t>(slot),
        static_cast<std::int32_t>(legal_gains_.size()));
    if (added) {
        legal_gains_.resize(first + tokens.size(), 0.0);
        legal_next_.resize(first + tokens.size(), Constraint::kNone);
        constraint.apply(state, tokens, legal_gains_.data() + first);
        if (slot + 1 < lattice.slots()) {
            asked_.clear();
            for (std::size_t c = 0; c < tokens.size(); ++c)
                if (legal_gains_[first + c] > kMinusInfinity) asked_.push_back(tokens[c]);
            reached_.resize(asked_.size());
            constraint.next(state, asked_, reached_.data());
            auto reached = reached_.begin();
            for (std::size_t c = 0; c < tokens.size(); ++c)
                if (legal_gains_[first + c] > kMinusInfinity) legal_next_[first + c] = *reached++;
        }
    }
    graph_.open(node);
    const Graph::Step* const steps = add_choices(index);
    Choice* const choices = choices_.data() + first_choice_[index];
    for (std::size_t c = 0; c < tokens.size(); ++c) {
        choices[c].step += legal_gains_[first + c];
        if (slot + 1 < lattice.slots() && choices[c].step > kMinusInfinity)
            choices[c].next = graph_.next_path_state(steps[c].hit, slot + 1, legal_next_[first + c]);
    }
}

// From the unigram node to longer and longer histories; a history that this does not reach is in a cycle of failures.
void NbestSearch::evaluate_slot(std::int32_t slot) {
    const auto nodes = graph_.nodes_of_slot(slot);
    unevaluated_ = nodes.size();
    stride_ = (static_cast<std::size_t>(std::max(graph_.lattice().slot(slot).size, 1)) + kLanes - 1) / kLanes * kLanes;
    if (has_transitions_ && slot > 0) has_gains_.assign(graph_.lattice().slot(slot - 1).size, 0);
    for (const std::int32_t node : nodes)
        if (graph_.node(node).backoff_node == Graph::kNone) evaluate(node, 0);
    if (unevaluated_ != 0) refuse_corrupt("failure arcs in a cycle");
}

// value(node) = the highest of its row, row[column] = log_prob - alpha * cost + value(next): the row of the backoff
// node, lowered by the cost of backing off, with the node's own hits written over it. Without a branch for any column
// this is quicker than to look at those only that may matter. Transitions are added last, so that the row serves all
// path states of the node.
void NbestSearch::evaluate(std::int32_t index, std::size_t depth) {
    if (depth > Model::kMaxFailures) refuse_corrupt("more than 255 failure arcs in a row");
    if (depth == rows_.size()) rows_.emplace_back();
    Graph::Node& node = graph_.node(index);
    std::vector<double>& row = rows_[depth];
    row.resize(stride_);
    if (depth == 0) {
        std::fill(row.begin(), row.end(), kMinusInfinity);
    } else {
        const double* const backed_off = rows_[depth - 1].data();
        const double cost = alpha_ * node.backoff_cost;
        double* const out = row.data();
        for (std::size_t c = 0; c < stride_; ++c) out[c] = backed_off[c] - cost;
    }
    const double* const log_probs = graph_.lattice().log_probs(node.slot);
    for (const Graph::Hit& hit : graph_.hits(node))
        row[hit.column] =
            log_probs[hit.column] - alpha_ * hit.cost + (hit.next != Graph::kNone ? values_[hit.next] : 0.0);
    if (!has_transitions_) values_[index] = highest(row);
    for (std::int32_t at = node.first_path_state; at != Graph::kNone; at = graph_.path_state(at).next)
        values_[at] = completion_value(at, row);
    --unevaluated_;
    for (std::int32_t longer = node.first_longer; longer != Graph::kNone; longer = graph_.node(longer).next_longer)
        evaluate(longer, depth + 1);
}

double NbestSearch::completion_value(std::int32_t path_state, const std::vector<double>& row) {
    const std::int32_t column = graph_.path_state(path_state).column;
    if (column == Graph::kNone) return highest(row);
    const std::size_t first = column * stride_;
    if (gains_.size() < first + stride_) gains_.resize(first + stride_);
    double* const gains = gains_.data() + first;
    if (std::uint8_t& known = has_gains_[column]; !known) {
        std::fill_n(gains, stride_, 0.0);
        graph_.lattice().transitions(graph_.slot_of(graph_.node_of(path_state)), column, gains);
        known = 1;
    }
    return highest(stride_, [&](std::size_t c) { return pair_at(row.data() + c) + pair_at(gains + c); });
}

// The first column in order after a path state, whose choices are made when it is first visited; kNone where no path
// goes on.
std::int32_t NbestSearch::best_column(std::int32_t index) {
    const std::int32_t node = graph_.node_of(index);
    const std::int32_t size = graph_.lattice().slot(graph_.slot_of(node)).size;
    if (first_choice_[index] == Graph::kNone) add_choices(index);
    return next_in_order(choices_.data() + first_choice_[index], size, std::numeric_limits<double>::infinity(), -1);
}

const Graph::Step* NbestSearch::add_choices(std::int32_t index) {
    if (choices_.size() > kMostChoices)
        refuse("expected a search that looks at fewer than 2^28 steps; lower p, k or the number of slots");
    if (first_choice_.size() <= static_cast<std::size_t>(index)) first_choice_.resize(index + 1, Graph::kNone);
    first_choice_[index] = static_cast<std::int32_t>(choices_.size());
    const std::int32_t node = graph_.node_of(index);
    const std::int32_t size = graph_.lattice().slot(graph_.slot_of(node)).size;
    const Graph::Step* const steps = graph_.resolve(node);
    const double* const weights = graph_.weights(index);
    for (std::int32_t c = 0; c < size; ++c) {
        const double step = weights[c] + alpha_ * -steps[c].cost;
        const std::int32_t next = graph_.hit(steps[c].hit).next;
        choices_.push_back({step + (next != Graph::kNone ? values_[next] : 0.0), step, next, kUnknown});
    }
    return steps;
}

// kNone after the last.
std::int32_t NbestSearch::follower(const Candidate& candidate) {
    Choice& chosen = choice(candidate);
    if (chosen.follower == kUnknown) {
        const std::int32_t size = graph_.lattice().slot(graph_.slot_of(graph_.node_of(candidate.path_state))).size;
        chosen.follower = next_in_order(&chosen - candidate.column, size, chosen.value, candidate.column);
    }
    return chosen.follower;
}

std::int32_t NbestSearch::next_in_order(const Choice* choices, std::int32_t size, double value, std::int32_t column) {
    double best = kMinusInfinity;
    std::int32_t next = Graph::kNone;
    for (std::int32_t c = 0; c < size; ++c) {
        const double other = choices[c].value;
        const bool after = (other < value) | ((other == value) & (c > column));
        const bool better = after & (other > best);
        best = better ? other : best;
        next = better ? c : next;
    }
    return next;
}

std::int32_t NbestSearch::global_column(const Candidate& candidate) {
    return graph_.lattice().slot(graph_.slot_of(graph_.node_of(candidate.path_state))).first + candidate.column;
}

// Higher bound first; among equals the candidate whose columns come first. Two candidates never share all columns, and
// neither prefix continues the other.
bool NbestSearch::before(const Candidate& a, const Candidate& b) {
    if (a.bound != b.bound) return a.bound > b.bound;
    const auto columns = [&](const Candidate& candidate, std::vector<std::int32_t>& out) {
        out.assign(1, global_column(candidate));
        for (std::int32_t at = candidate.prefix; at != Graph::kNone; at = prefixes_[at].parent)
            out.push_back(prefixes_[at].column);
    };
    columns(a, left_);
    columns(b, right_);
    return std::lexicographical_compare(left_.rbegin(), left_.rend(), right_.rbegin(), right_.rend());
}

void NbestSearch::enumerate(std::int32_t root, std::int64_t p) {
    prefixes_.clear();
    heap_.clear();
    complete_.clear();
    const auto later = [&](const Candidate& a, const Candidate& b) { return before(b, a); };
    if (const std::int32_t best = best_column(root); best != Graph::kNone)
        heap_.push_back({values_[root], Graph::kNone, root, best});
    while (!heap_.empty() && static_cast<std::int64_t>(complete_.size()) < p) {
        std::pop_heap(heap_.begin(), heap_.end(), later);
        Candidate at = heap_.back();
        heap_.pop_back();
        // Down to the end along the best columns, leaving at each slot the next best for later.
        while (true) {
            const double score = at.prefix == Graph::kNone ? 0.0 : prefixes_[at.prefix].score;
            if (Candidate sibling = at; (sibling.column = follower(at)) != Graph::kNone) {
                sibling.bound = score + choice(sibling).value;
                heap_.push_back(sibling);
                std::push_heap(heap_.begin(), heap_.end(), later);
            }
            const Choice& chosen = choice(at);
            if (prefixes_.size() == kMostPrefixes)
                refuse("expected a search of at most 2^26 prefixes of paths; lower p or the number of slots");
            prefixes_.push_back({score + chosen.step, at.prefix, global_column(at)});
            const auto prefix = static_cast<std::int32_t>(prefixes_.size() - 1);
            if (chosen.next == Graph::kNone) {
                complete_.push_back(prefix);
                break;
            }
            const std::int32_t next = chosen.next;
            at = {at.bound, prefix, next, best_column(next)};
            if (at.column == Graph::kNone) throw std::logic_error("a best completion that no column begins");
        }
    }
}

// Bounds are rounded otherwise than scores are, so the last word on the order is the scores'.
void NbestSearch::collect() {
    const Lattice& lattice = graph_.lattice();
    const std::size_t slots = lattice.longest();
    unsorted_.resize(complete_.size() * slots);
    order_.resize(complete_.size());
    for (std::size_t i = 0; i < complete_.size(); ++i) {
        std::int32_t* const path = unsorted_.data() + i * slots;
        std::size_t t = slots;
        for (std::int32_t at = complete_[i]; at != Graph::kNone; at = prefixes_[at].parent)
            if (const std::int32_t token = lattice.token(prefixes_[at].column); token != Lattice::kEpsilon)
                path[--t] = token;
        if (t > 0) std::fill(std::copy(path + t, path + slots, path), path + slots, Lattice::kEpsilon);
        order_[i] = i;
    }
    const auto score = [&](std::size_t i) { return prefixes_[complete_[i]].score; };
    std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
        if (score(a) != score(b)) return score(a) > score(b);
        const auto path = [&](std::size_t i) { return unsorted_.data() + i * slots; };
        return std::lexicographical_compare(path(a), path(a + 1), path(b), path(b + 1));
    });
    result_.tokens.clear();
    result_.scores.clear();
    for (const std::size_t i : order_) {
        const std::int32_t* const path = unsorted_.data() + i * slots;
        result_.tokens.insert(result_.tokens.end(), path, path + slots);
        result_.scores.push_back(score(i));
    }
}

}  // namespace fst_core
