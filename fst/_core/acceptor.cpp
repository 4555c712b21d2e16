#include "acceptor.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>

#include <fst/refuse.hpp>

namespace fst_core {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kMostSets = 1u << 17, kMostMembers = 1u << 25;
constexpr double kGrid = 65536;  // residuals are multiples of 1 / kGrid, so that sets that round otherwise are equal

// Every state that `each(state, visit)` leads to from some, these included.
template <typename Each>
std::vector<std::uint8_t> reached_from(std::vector<std::int32_t> states, std::size_t num_states, const Each& each) {
    std::vector<std::uint8_t> reached(num_states, 0);
    for (const std::int32_t state : states) reached[state] = 1;
    while (!states.empty()) {
        const std::int32_t state = states.back();
        states.pop_back();
        each(state, [&](std::int32_t next) {
            if (reached[next]) return;
            reached[next] = 1;
            states.push_back(next);
        });
    }
    return reached;
}

}  // namespace

Acceptor::Acceptor(std::span<const std::int64_t> offsets, std::span<const Arc> arcs, std::span<const double> finals,
                   std::int32_t start)
    : offsets_(offsets.begin(), offsets.end()), arcs_(arcs.begin(), arcs.end()), finals_(finals.begin(), finals.end()) {
    constexpr double kLargest = 1e30;
    if (offsets_.size() != finals_.size() + 1 || start < 0 || start >= num_states() || offsets_.front() != 0 ||
        offsets_.back() != static_cast<std::int64_t>(arcs_.size()) || !std::ranges::is_sorted(offsets_))
        fst::refuse("expected an acceptor's offsets [states + 1] and finals [states], and a start state");
    for (const Arc& arc : arcs_) {
        if (arc.target < 0 || arc.target >= num_states() || arc.label < 0)
            fst::refuse("expected arcs to states below ", num_states(), " with labels from 0, got ", arc.target,
                        " by label ", arc.label);
        if (!(arc.cost >= -kLargest) || (arc.cost > kLargest && arc.cost != kInfinity))
            fst::refuse("expected weights from -1e30 to 1e30, got ", arc.cost);
    }
    for (const double cost : finals_)
        if (!(cost >= -kLargest) || (cost > kLargest && cost != kInfinity))
            fst::refuse("expected final weights from -1e30 to 1e30, got ", cost);
    trim(start);
    check_epsilons();
    best_.assign(finals_.size(), kInfinity);
    find({});
    std::vector<Member> members{{start, 0.0}};
    const double cost = close(members);
    // What the best epsilons from the start cost is a part of every path's cost: it stays in the residuals.
    for (Member& member : members) member.residual += cost;
    start_set_ = find(std::move(members));
}

void Acceptor::trim(std::int32_t& start) {
    const auto n = static_cast<std::size_t>(num_states());
    std::vector<std::vector<std::int32_t>> sources(n);
    for (std::int32_t state = 0; state < num_states(); ++state)
        for (const Arc& arc : arcs(state))
            if (arc.cost < kInfinity) sources[arc.target].push_back(state);
    const auto forward = reached_from({start}, n, [&](std::int32_t state, const auto& visit) {
        for (const Arc& arc : arcs(state))
            if (arc.cost < kInfinity) visit(arc.target);
    });
    std::vector<std::int32_t> ends;
    for (std::int32_t state = 0; state < num_states(); ++state)
        if (finals_[state] < kInfinity) ends.push_back(state);
    const auto backward = reached_from(
        ends, n, [&](std::int32_t state, const auto& visit) { std::ranges::for_each(sources[state], visit); });
    if (!backward[start]) fst::refuse("expected an acceptor of at least one text, got one of none");

    std::vector<std::int32_t> number(n, kNone);
    std::vector<std::int64_t> offsets{0};
    std::vector<Arc> kept;
    std::vector<double> finals;
    for (std::size_t state = 0, next = 0; state < n; ++state)
        if (forward[state] && backward[state]) number[state] = static_cast<std::int32_t>(next++);
    for (std::int32_t state = 0; state < num_states(); ++state) {
        if (number[state] == kNone) continue;
        for (const Arc& arc : arcs(state)) {
            if (arc.cost == kInfinity || number[arc.target] == kNone) continue;
            kept.push_back({arc.label, number[arc.target], arc.cost});
            weighted_ |= arc.cost != 0;
            has_epsilons_ |= arc.label == kEpsilon;
            largest_label_ = std::max(largest_label_, arc.label);
        }
        offsets.push_back(static_cast<std::int64_t>(kept.size()));
        finals.push_back(finals_[state]);
        weighted_ |= finals_[state] != 0 && finals_[state] < kInfinity;
    }
    start = number[start];
    offsets_ = std::move(offsets);
    arcs_ = std::move(kept);
    finals_ = std::move(finals);
}

// Bellman and Ford: costs along epsilons settle in as many rounds as there are states, unless a cycle lowers them.
void Acceptor::check_epsilons() const {
    if (!has_epsilons_ || !weighted_) return;
    std::vector<double> least(finals_.size(), 0.0);
    std::vector<std::int32_t> rounds(finals_.size(), 0);
    std::deque<std::int32_t> queue;
    std::vector<std::uint8_t> waits(finals_.size(), 1);
    for (std::int32_t state = 0; state < num_states(); ++state) queue.push_back(state);
    while (!queue.empty()) {
        const std::int32_t state = queue.front();
        queue.pop_front();
        waits[state] = 0;
        for (const Arc& arc : arcs(state)) {
            if (arc.label != kEpsilon || least[state] + arc.cost >= least[arc.target]) continue;
            least[arc.target] = least[state] + arc.cost;
            if (waits[arc.target]) continue;
            if (++rounds[arc.target] > num_states())
                fst::refuse("expected epsilons in cycles of weight 0 or more, got a cycle below 0");
            waits[arc.target] = 1;
            queue.push_back(arc.target);
        }
    }
}

double Acceptor::close(std::vector<Member>& members) {
    std::deque<std::int32_t> queue;
    std::vector<std::int32_t> states;
    const auto lower = [&](std::int32_t state, double cost) {
        if (cost >= best_[state]) return;
        if (best_[state] == kInfinity) states.push_back(state);
        best_[state] = cost;
        if (has_epsilons_) queue.push_back(state);
    };
    for (const Member& member : members) lower(member.state, member.residual);
    for (; !queue.empty(); queue.pop_front())
        for (const Arc& arc : arcs(queue.front()))
            if (arc.label == kEpsilon) lower(arc.target, best_[queue.front()] + arc.cost);
    std::ranges::sort(states);
    double least = kInfinity;
    members.clear();
    for (const std::int32_t state : states) {
        members.push_back({state, best_[state]});
        least = std::min(least, best_[state]);
        best_[state] = kInfinity;
    }
    for (Member& member : members) member.residual -= least;
    return least;
}

std::int32_t Acceptor::find(std::vector<Member> members) {
    std::string key(members.size() * (sizeof(std::int32_t) + sizeof(double)), '\0');
    char* at = key.data();
    for (Member& member : members) {
        member.residual = std::round(member.residual * kGrid) / kGrid + 0.0;  // no negative zero
        at = static_cast<char*>(std::memcpy(at, &member.state, sizeof member.state)) + sizeof member.state;
        at = static_cast<char*>(std::memcpy(at, &member.residual, sizeof member.residual)) + sizeof member.residual;
    }
    const auto [known, added] = by_members_.try_emplace(std::move(key), num_sets());
    if (!added) return known->second;
    num_members_ += members.size();
    if (sets_.size() >= kMostSets || num_members_ > kMostMembers) {
        by_members_.erase(known);
        fst::refuse("expected an acceptor of fewer than 2^17 deterministic states, got more; simplify it");
    }
    sets_.emplace_back().members = std::move(members);
    return num_sets() - 1;
}

std::span<const Acceptor::Step> Acceptor::steps(std::int32_t index) {
    if (!sets_[index].is_expanded) {
        std::vector<std::pair<std::int32_t, Member>> targets;
        for (const Member& member : sets_[index].members)
            for (const Arc& arc : arcs(member.state))
                if (arc.label != kEpsilon) targets.push_back({arc.label, {arc.target, member.residual + arc.cost}});
        std::ranges::stable_sort(targets, {}, [](const auto& target) { return target.first; });
        std::vector<Step> steps;
        std::vector<Member> members;
        for (std::size_t i = 0; i < targets.size();) {
            const std::int32_t label = targets[i].first;
            members.clear();
            for (; i < targets.size() && targets[i].first == label; ++i) members.push_back(targets[i].second);
            const double cost = close(members);
            steps.push_back({label, find(members), cost});
        }
        sets_[index].steps = std::move(steps);
        sets_[index].is_expanded = true;
    }
    return sets_[index].steps;
}

const Acceptor::Step* Acceptor::step(std::int32_t set, std::int32_t label) {
    const std::span<const Step> steps = this->steps(set);
    const auto at = std::ranges::lower_bound(steps, label, {}, &Step::label);
    return at != steps.end() && at->label == label ? &*at : nullptr;
}

double Acceptor::final_cost(std::int32_t set) const {
    double least = kInfinity;
    for (const Member& member : sets_[set].members) least = std::min(least, member.residual + finals_[member.state]);
    return least;
}

bool Acceptor::is_final(std::int32_t state) const { return finals_[state] < kInfinity; }

std::int32_t Acceptor::restricted(std::int32_t set, const std::vector<std::uint8_t>& keeps) {
    std::vector<Member> members = sets_[set].members;
    std::erase_if(members, [&](const Member& member) { return !keeps[member.state]; });
    return members.empty() ? kNone : find(std::move(members));
}

}  // namespace fst_core
