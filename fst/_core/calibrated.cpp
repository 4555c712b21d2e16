#include "calibrated.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tree.hpp"

namespace fst_core {

namespace {

constexpr double kLeastMass = 1e-6;

// Of a match's length, from 1: which of the six features it is.
std::int32_t match_class(std::int32_t length) {
    return length <= 3 ? length - 1 : length <= 5 ? 3 : length <= 8 ? 4 : 5;
}

}  // namespace

template <typename Take>
inline void CalibratedSearch::each_feature(const Arc& arc, const Take& take) {
    if (arc.hit == Graph::kNone) take(kNotDrafted, 1);
    else take(kLogProb, arc.log_prob);
    take(kNgram, arc.ngram);
    take(kNgramProb, std::exp(arc.ngram));
    if (arc.level > 0) take(kBigram + std::min(arc.level, 3) - 1, 1);
    if (arc.match < 0) return;
    take(arc.match == 0 ? kSeen : kMatch + match_class(arc.match), 1);
    take(arc.match == 0 ? kShareSeen : arc.match < kLong ? kShareMatch : kShareLonger, arc.share);
    if (arc.match >= kLong) take(kShareProb, std::exp(arc.share));
}

CalibratedSearch::State CalibratedSearch::start(const Lattice& lattice, std::uint32_t start_state,
                                                const TextIndex& text, std::int64_t proposals, Constraint* constraint) {
    if (lattice.slots() == 0) refuse("expected lattices of at least one slot, or further slots, got none");
    if (proposals < 0 || proposals > kMostProposals)
        refuse("expected 0 to ", kMostProposals, " proposals, got ", proposals);
    graph_.assign(lattice, kTreeBuckets, constraint != nullptr);
    text_ = &text;
    constraint_ = constraint;
    proposals_ = static_cast<std::size_t>(proposals);
    arcs_.clear();
    conditionals_.clear();
    return {graph_.path_state_after(0, start_state, Constraint::kStart), text.end()};
}

const Tree& CalibratedSearch::run(const Lattice& lattice, std::uint32_t start_state, const TextIndex& text,
                                  std::span<const double> weights, std::int64_t num_nodes, std::int64_t proposals,
                                  Constraint* constraint) {
    if (weights.empty() || weights.size() % kFeatures != 0)
        refuse("expected ", kFeatures, " weights for each slot, got ", weights.size());
    for (const double weight : weights)
        if (!(std::abs(weight) <= kLargestWeight)) refuse("expected weights from -1e6 to 1e6, got ", weight);
    const State root = start(lattice, start_state, text, proposals, constraint);
    if (weights.size() == kFeatures && lattice.num_columns() > 0 && lattice.slot(lattice.slots() - 1).size == 0)
        refuse("expected weights of the lattice's slots and of further slots, got one slot's");
    check_num_nodes(lattice, num_nodes);
    weights_.assign(weights.begin(), weights.end());
    for (std::size_t i = 0; i < weights_.size(); ++i)
        if (i % kFeatures >= kEach) weights_[i] += weights_[i - kEach];
    return search_.run(*this, root, num_nodes);
}

CalibratedSearch::Description CalibratedSearch::describe(const Lattice& lattice, std::uint32_t start_state,
                                                         const TextIndex& text, std::span<const std::int64_t> path,
                                                         std::int64_t proposals) {
    if (path.size() > static_cast<std::size_t>(lattice.slots()))
        refuse("expected a path of at most ", lattice.slots(), " tokens, got ", path.size());
    const Model* const model = lattice.model();
    State state = start(lattice, start_state, text, proposals, nullptr);
    Description out;
    for (std::int32_t slot = 0; slot < static_cast<std::int32_t>(path.size()); ++slot) {
        const Followers followers = find_arcs(state);
        const bool matched = has_long_match(followers);
        for (std::int32_t i = followers.first; i <= followers.first + followers.size; ++i) {
            float row[kFeatures] = {};
            if (i == followers.first + followers.size) {
                row[kOutside] = 1;
                row[kMass] = static_cast<float>(outside_mass(slot));
            } else {
                each_feature(arcs_[i],
                             [&](std::int32_t feature, double value) { row[feature] = static_cast<float>(value); });
            }
            if (matched) std::copy_n(row, kEach, row + kEach);
            out.features.insert(out.features.end(), row, row + kFeatures);
            out.tokens.push_back(i == followers.first + followers.size ? -1 : arcs_[i].token);
        }
        out.sizes.push_back(followers.size + 1);
        if (slot + 1 == lattice.slots()) break;
        const std::int64_t token = path[slot];
        const std::uint32_t before = graph_.node(graph_.node_of(state.path_state)).state;
        const std::uint32_t lm_state = model == nullptr ? 0 : model->advance(before, model->label_of(token)).next_state;
        const std::int32_t column = column_of(lattice, slot, static_cast<std::int32_t>(token));
        state = {graph_.find_path_state(graph_.find_node(slot + 1, lm_state), column),
                 text.advance(state.history, static_cast<std::int32_t>(token))};
    }
    return out;
}

double CalibratedSearch::outside_mass(std::int32_t slot) const {
    const Lattice& lattice = graph_.lattice();
    const double* const log_probs = lattice.log_probs(slot);
    double mass = 1;
    for (std::int32_t c = 0; c < lattice.slot(slot).size; ++c) mass -= std::exp(log_probs[c]);
    return std::log(std::max(mass, kLeastMass));
}

const double* CalibratedSearch::weights_of(std::int32_t slot, bool matched) const {
    const Lattice& lattice = graph_.lattice();
    const std::size_t last = weights_.size() / kFeatures - 1;
    const bool has_columns = lattice.slot(slot).size > 0, extended = lattice.slot(lattice.slots() - 1).size == 0;
    const bool is_further = !has_columns && lattice.num_columns() > 0;
    const std::size_t row =
        is_further ? last : std::min(static_cast<std::size_t>(slot), has_columns && extended ? last - 1 : last);
    return weights_.data() + row * kFeatures + (matched ? kEach : 0);
}

Followers CalibratedSearch::expand(const State& state) {
    const Followers followers = find_arcs(state);
    const std::int32_t slot = graph_.slot_of(graph_.node_of(state.path_state));
    const double* const weights = weights_of(slot, has_long_match(followers));
    double outside = weights[kOutside] + weights[kMass] * outside_mass(slot);
    conditionals_.resize(arcs_.size());
    double* const scores = conditionals_.data() + followers.first;
    if (forced(state) != Constraint::kNone) {
        scores[0] = forced_log_prob(*constraint_, constraint_state(state));
        return followers;
    }
    for (std::int32_t i = 0; i < followers.size; ++i) {
        scores[i] = 0;
        each_feature(arcs_[followers.first + i],
                     [&](std::int32_t feature, double value) { scores[i] += weights[feature] * value; });
    }
    if (constraint_ != nullptr) outside += apply_constraint(state, followers, scores);
    double best = outside;
    for (std::int32_t i = 0; i < followers.size; ++i) best = std::max(best, scores[i]);
    double total = std::exp(outside - best);
    for (std::int32_t i = 0; i < followers.size; ++i) total += std::exp(scores[i] - best);
    const double normaliser = best + std::log(total);
    for (std::int32_t i = 0; i < followers.size; ++i) scores[i] -= normaliser;
    return followers;
}

double CalibratedSearch::apply_constraint(const State& state, const Followers& followers, double* scores) {
    tokens_.clear();
    for (std::int32_t i = 0; i < followers.size; ++i) tokens_.push_back(arcs_[followers.first + i].token);
    const std::int32_t at = constraint_state(state);
    constraint_->apply(at, tokens_, scores);
    const auto others = [&](std::int64_t tokens) { return static_cast<double>(tokens - followers.size); };
    const double legal = others(constraint_->num_legal(at));
    return legal > 0 ? std::log(legal / others(constraint_->vocab_size(at))) : kMinusInfinity;
}

bool CalibratedSearch::next(const State& state, std::int32_t follower, State& out) {
    const std::int32_t slot = graph_.slot_of(graph_.node_of(state.path_state)) + 1;
    if (slot == graph_.lattice().slots()) return false;
    const Arc& arc = arcs_[follower];
    const std::int32_t constraint_state =
        constraint_ == nullptr ? Constraint::kStart : constraint_->next(this->constraint_state(state), arc.token);
    out.path_state = arc.hit == Graph::kNone ? graph_.path_state_after(slot, arc.next_state, constraint_state)
                                             : graph_.next_path_state(arc.hit, slot, constraint_state);
    out.history = text_->advance(state.history, arc.token);
    return true;
}

// The slot's columns, or the proposals for a slot without any, which lie by rising token, and copies among them.
Followers CalibratedSearch::find_arcs(const State& state) {
    const std::int32_t node = graph_.node_of(state.path_state);
    graph_.open(node);
    const Graph::Step* const steps = graph_.resolve(node);
    const double* const weights = graph_.weights(state.path_state);
    const Lattice& lattice = graph_.lattice();
    const Lattice::Slot& columns = lattice.slot(graph_.slot_of(node));
    check_opened(arcs_.size());
    const auto first = static_cast<std::int32_t>(arcs_.size());
    const std::int32_t forced = this->forced(state);
    for (std::int32_t c = 0; c < columns.size; ++c) {
        const std::int32_t token = lattice.token(columns.first + c);
        if (forced != Constraint::kNone ? token != forced : !is_legal(state, token)) continue;
        const Graph::Step& step = steps[c];
        const double log_prob = std::max(weights[c], kLeast);
        arcs_.push_back({token, step.hit, 0, step.level, -1, 0, log_prob, std::max(-step.cost, kLeast)});
    }
    if (forced != Constraint::kNone) {
        if (arcs_.size() == static_cast<std::size_t>(first)) arcs_.push_back(not_drafted(state, forced));
        return {first, 1};
    }
    if (columns.size == 0 && proposals_ > 0) add_proposals(state);
    if (constraint_ != nullptr) add_few_legal(state, first);
    const auto listed = static_cast<std::int32_t>(arcs_.size()) - first;
    match_columns(state, first, listed);
    add_copies(state, first, listed);
    return {first, static_cast<std::int32_t>(arcs_.size()) - first};
}

// A token that the slot lacks, as the n-gram model has it after a state's history.
CalibratedSearch::Arc CalibratedSearch::not_drafted(const State& state, std::int32_t token) {
    const Graph::Node& node = graph_.node(graph_.node_of(state.path_state));
    const Model* const model = graph_.lattice().model();
    std::int32_t levels = 0;  // of the state's history
    for (std::int32_t at = node.backoff_node; at != Graph::kNone; at = graph_.node(at).backoff_node) ++levels;
    Model::Step step{0, 0, levels};
    if (model != nullptr) step = model->advance(node.state, model->label_of(token));
    return {token, Graph::kNone, step.next_state, levels - step.failures, -1, 0, 0, std::max(-step.cost, kLeast)};
}

// All legal tokens, where they are few, among those that are arcs already.
void CalibratedSearch::add_few_legal(const State& state, std::int32_t first) {
    const auto listed = static_cast<std::int32_t>(arcs_.size()) - first;
    for (const std::int32_t token : constraint_->few_legal(constraint_state(state))) {
        const auto end = arcs_.begin() + first + listed;
        const auto arc = std::ranges::lower_bound(arcs_.begin() + first, end, token, {}, &Arc::token);
        if (arc == end || arc->token != token) arcs_.push_back(not_drafted(state, token));
    }
    std::ranges::sort(arcs_.begin() + first, arcs_.end(), {}, &Arc::token);
}

// The tokens that the n-gram model holds likeliest among those that follow a history of one token or more.
void CalibratedSearch::add_proposals(const State& state) {
    const Model* const model = graph_.lattice().model();
    if (model == nullptr) return;
    likeliest_.clear();  // a heap, the least likely first
    double backoff_cost = 0;
    const Graph::Node& node = graph_.node(graph_.node_of(state.path_state));
    std::uint32_t at = node.state;
    for (int failures = 0; at != model->unigram_state(); ++failures) {
        if (failures == Model::kMaxFailures) refuse_failures(at);
        const Row row = model->row(at);
        for (std::uint32_t i = 0; i < row.num_arcs; ++i) {
            const ArcRecord arc = row.arc(i);
            std::pair<double, std::int32_t> candidate{backoff_cost + Model::cost(arc.cost), arc.label - 1};
            const auto loses = [&] { return likeliest_.size() == proposals_ && !(candidate < likeliest_.front()); };
            if (loses() || arc.label < 1 || arc.label == model->unk_label()) continue;
            if (!is_legal(state, candidate.second)) continue;
            if (failures > 0) {  // it may have a longer n-gram
                candidate.first = model->advance(node.state, arc.label).cost;
                const auto same = [&](const auto& known) { return known.second == candidate.second; };
                if (loses() || std::ranges::any_of(likeliest_, same)) continue;
            }
            if (likeliest_.size() == proposals_) {
                std::ranges::pop_heap(likeliest_);
                likeliest_.pop_back();
            }
            likeliest_.push_back(candidate);
            std::ranges::push_heap(likeliest_);
        }
        if (!row.backs_off) break;
        backoff_cost += row.backoff_cost;
        at = row.backoff_state;
    }
    std::ranges::sort(likeliest_, {}, [](const auto& candidate) { return candidate.second; });
    for (const auto& candidate : likeliest_) arcs_.push_back(not_drafted(state, candidate.second));
}

void CalibratedSearch::set_match(Arc& arc, std::int32_t history, std::int32_t child) const {
    const TextIndex::Node& context = text_->node(history);
    arc.match = context.depth;
    arc.share = static_cast<float>(std::log(text_->node(child).count / (context.total + 0.5)));
}

// The longest of the path's last tokens that the text has before each column's token.
void CalibratedSearch::match_columns(const State& state, std::int32_t first, std::int32_t size) {
    if (size == 0) return;
    Arc* const arcs = arcs_.data() + first;
    for (std::int32_t history = state.history; history != TextIndex::kNone; history = text_->node(history).shorter) {
        const TextIndex::Node& node = text_->node(history);
        if (node.total <= size) {
            for (std::int32_t child = node.first_child; child != TextIndex::kNone;
                 child = text_->node(child).next_sibling) {
                const std::int32_t token = text_->node(child).token;
                Arc* const arc = std::ranges::lower_bound(arcs, arcs + size, token, {}, &Arc::token);
                if (arc != arcs + size && arc->token == token && arc->match < 0) set_match(*arc, history, child);
            }
        } else {
            for (std::int32_t c = 0; c < size; ++c) {
                if (arcs[c].match >= 0) continue;
                if (const std::int32_t child = text_->child(history, arcs[c].token); child != TextIndex::kNone)
                    set_match(arcs[c], history, child);
            }
        }
    }
}

void CalibratedSearch::add_copies(const State& state, std::int32_t first, std::int32_t size) {
    const std::size_t listed_end = arcs_.size();
    const auto known = [&](std::int32_t token) {
        const auto begin = arcs_.begin() + first, end = begin + size;
        const auto arc = std::ranges::lower_bound(begin, end, token, {}, &Arc::token);
        return (arc != end && arc->token == token) ||
               std::any_of(end, arcs_.end(), [&](const Arc& each) { return each.token == token; });
    };
    for (std::int32_t history = state.history; text_->node(history).depth > 0; history = text_->node(history).shorter) {
        if (text_->node(history).total > kMostListed) break;
        for (std::int32_t child = text_->node(history).first_child; child != TextIndex::kNone;
             child = text_->node(child).next_sibling) {
            if (arcs_.size() - listed_end == kMostCopies) break;
            const std::int32_t token = text_->node(child).token;
            if (known(token) || !is_legal(state, token)) continue;
            Arc arc = not_drafted(state, token);
            set_match(arc, history, child);
            arcs_.push_back(arc);
        }
    }
    if (arcs_.size() > listed_end) std::ranges::sort(arcs_.begin() + first, arcs_.end(), {}, &Arc::token);
}

}  // namespace fst_core
