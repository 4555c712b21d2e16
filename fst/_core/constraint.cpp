#include "constraint.hpp"

#include <algorithm>
#include <cmath>

#include <fst/refuse.hpp>

#include "lattice.hpp"

namespace fst_core {

namespace {

constexpr std::size_t kBuckets = 64;

}  // namespace

Constraint::Constraint(TokenAutomaton& automaton) : automaton_(automaton) {
    by_number_.clear(kBuckets);
    next_.clear(kBuckets);
    index_of(automaton.start());
}

std::int32_t Constraint::index_of(std::int64_t number) {
    if (number < 0) refuse("expected a state of the constraint, from 0, got ", number);
    const auto [index, added] =
        by_number_.insert(static_cast<std::uint64_t>(number), static_cast<std::int32_t>(states_.size()));
    if (added) states_.push_back({.number = number, .legal = {}, .few = {}, .forced = {}});
    return index;
}

const Constraint::State& Constraint::state(std::int32_t index) {
    State& state = states_[index];
    if (state.num_legal != kUnknown) return state;
    state.legal = automaton_.legal(state.number);
    state.num_legal = std::count_if(state.legal.begin(), state.legal.end(), [](std::uint8_t legal) { return legal; });
    if (state.num_legal <= static_cast<std::int64_t>(kFew))
        for (auto at = state.legal.begin(); static_cast<std::int64_t>(state.few.size()) < state.num_legal; ++at) {
            at = std::find_if(at, state.legal.end(), [](std::uint8_t legal) { return legal; });
            state.few.push_back(static_cast<std::int32_t>(at - state.legal.begin()));
        }
    return state;
}

std::int32_t Constraint::forced(std::int32_t index) {
    State& state = states_[index];
    if (!state.has_forced) state.forced = automaton_.forced(state.number);
    state.has_forced = true;
    if (state.forced.empty()) return kNone;
    if (!state.is_forced_legal && !is_legal(index, state.forced.front())) {
        state.forced.clear();
        return kNone;
    }
    state.is_forced_legal = true;
    return state.forced.front();
}

std::int32_t Constraint::next(std::int32_t state, std::int32_t token) {
    std::int32_t reached;
    next(state, {&token, 1}, &reached);
    return reached;
}

void Constraint::next(std::int32_t state, std::span<const std::int32_t> tokens, std::int32_t* states) {
    const auto key = [&](std::int32_t token) {
        return std::uint64_t{static_cast<std::uint32_t>(state)} << 32 | static_cast<std::uint32_t>(token);
    };
    asked_.clear();
    for (const std::int32_t token : tokens)
        if (next_.find(key(token)) == HashTable<std::uint64_t>::kNone) asked_.push_back(token);
    if (!asked_.empty()) {
        successors_.resize(asked_.size());
        automaton_.successors(states_[state].number, asked_, successors_.data());
        for (std::size_t i = 0; i < asked_.size(); ++i) {
            const std::int32_t reached = index_of(successors_[i]);
            next_.insert(key(asked_[i]), reached);
            const std::vector<std::int32_t>& forced = states_[state].forced;
            if (forced.size() < 2 || asked_[i] != forced.front() || states_[reached].has_forced) continue;
            states_[reached].forced.assign(forced.begin() + 1, forced.end());  // the rest of what is forced
            states_[reached].has_forced = true;
        }
    }
    for (const std::int32_t token : tokens) *states++ = next_.find(key(token));
}

void Constraint::apply(std::int32_t state, std::span<const std::int32_t> tokens, double* scores) {
    asked_.clear();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (is_legal(state, tokens[i])) asked_.push_back(tokens[i]);
        else scores[i] = kMinusInfinity;
    }
    if (!automaton_.weighted() || asked_.empty()) return;
    costs_.resize(asked_.size());
    automaton_.costs(states_[state].number, asked_, costs_.data());
    auto cost = costs_.begin();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (!is_legal(state, tokens[i])) continue;
        if (!(std::abs(*cost) <= kLargestWeight)) refuse("expected costs of tokens from -1e30 to 1e30, got ", *cost);
        scores[i] -= *cost++;
    }
}

}  // namespace fst_core
