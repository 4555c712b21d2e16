#include "acceptor_over_tokens.hpp"

#include <algorithm>
#include <cmath>

#include <fst/refuse.hpp>

namespace fst_core {

AcceptorOverTokens::AcceptorOverTokens(Acceptor acceptor, std::shared_ptr<const TokenTrie> trie,
                                       std::int32_t vocab_size, std::vector<std::int32_t> end_tokens)
    : acceptor_(std::move(acceptor)), trie_(std::move(trie)), vocab_size_(vocab_size),
      end_tokens_(std::move(end_tokens)) {
    if (trie_ != nullptr && trie_->vocab_size() != vocab_size)
        fst::refuse("expected the bytes of ", vocab_size, " tokens, got those of ", trie_->vocab_size());
    const std::int32_t largest = trie_ != nullptr ? 255 : vocab_size;
    if (acceptor_.largest_label() > largest)
        fst::refuse("expected labels ", trie_ != nullptr ? "of bytes, 1 to " : "of tokens, id + 1, from 1 to ", largest,
                    ", got ", acceptor_.largest_label());
    for (const std::int32_t token : end_tokens_)
        if (token < 0 || token >= vocab_size) fst::refuse("expected end tokens below ", vocab_size, ", got ", token);
    if (trie_ != nullptr) find_live();
    start_ = boundary(acceptor_.start());
    if (start_ == kNone) fst::refuse("expected an acceptor of a text that the model's tokens spell, got one of none");
}

// Backward from the ends by tokens of one byte, which mostly leaves no state: models have a token for nearly every
// byte. What is left walks the trie, until no walk finds a token to a state that can end.
void AcceptorOverTokens::find_live() {
    std::array<bool, 256> is_token{};
    for (std::int32_t at = 0; at < trie_->size(); at = trie_->node(at).end)
        is_token[trie_->node(at).byte] = trie_->node(at).num_tokens > 0;
    is_token[Acceptor::kEpsilon] = true;
    const std::int32_t n = acceptor_.num_states();
    std::vector<std::vector<std::int32_t>> before(n);
    std::vector<std::int32_t> queue;
    std::vector<std::uint8_t> live(n, 0);
    for (std::int32_t state = 0; state < n; ++state) {
        for (const Acceptor::Arc& arc : acceptor_.arcs(state))
            if (is_token[arc.label]) before[arc.target].push_back(state);
        if (acceptor_.is_final(state)) live[state] = 1, queue.push_back(state);
    }
    while (!queue.empty()) {
        const std::int32_t state = queue.back();
        queue.pop_back();
        for (const std::int32_t from : before[state])
            if (!live[from]) live[from] = 1, queue.push_back(from);
    }
    if (std::ranges::count(live, 0) == 0) return;
    live_ = std::move(live);
    for (bool grows = true; grows;) {
        grows = false;
        for (std::int32_t state = 0; state < n; ++state)
            if (!live_[state] && reaches_live(state)) live_[state] = grows = true;
    }
}

bool AcceptorOverTokens::reaches_live(std::int32_t from) {
    constexpr std::int64_t kMostSteps = std::int64_t{1} << 28;
    std::vector<std::vector<std::int32_t>> path(trie_->longest() + 1);
    const auto add = [&](std::vector<std::int32_t>& states, std::int32_t state) {
        if (std::ranges::find(states, state) == states.end()) states.push_back(state);
    };
    const auto close = [&](std::vector<std::int32_t>& states) {
        for (std::size_t i = 0; i < states.size(); ++i)
            for (const Acceptor::Arc& arc : acceptor_.arcs(states[i]))
                if (arc.label == Acceptor::kEpsilon) add(states, arc.target);
    };
    const auto is_live = [&](std::int32_t state) { return live_[state] != 0; };
    close(path[0] = {from});
    if (std::ranges::any_of(path[0], is_live)) return true;
    for (std::int32_t at = 0; at < trie_->size();) {
        const TokenTrie::Node& node = trie_->node(at);
        std::vector<std::int32_t>& reached = path[node.depth];
        reached.clear();
        for (const std::int32_t state : path[node.depth - 1])
            for (const Acceptor::Arc& arc : acceptor_.arcs(state))
                if (arc.label == node.byte && arc.label != Acceptor::kEpsilon) add(reached, arc.target);
        close(reached);
        if (node.num_tokens > 0 && std::ranges::any_of(reached, is_live)) return true;
        if ((live_steps_ += 1 + static_cast<std::int64_t>(reached.size())) > kMostSteps)
            fst::refuse("expected a smaller acceptor for tokens that lack some of its bytes; determinize it");
        at = reached.empty() ? node.end : at + 1;
    }
    return false;
}

std::int32_t AcceptorOverTokens::boundary(std::int32_t set) {
    if (live_.empty()) return set;
    if (boundaries_.size() <= static_cast<std::size_t>(set)) boundaries_.resize(2 * set + 1, kUnknown);
    if (boundaries_[set] == kUnknown) boundaries_[set] = acceptor_.restricted(set, live_);
    return boundaries_[set];
}

const std::array<std::int32_t, 256>& AcceptorOverTokens::row(std::int32_t set) {
    if (rows_.size() <= static_cast<std::size_t>(set)) rows_.resize(2 * set + 1);
    if (rows_[set] == nullptr) {
        auto row = std::make_unique<std::array<std::int32_t, 256>>();
        row->fill(kNone);
        for (const Acceptor::Step& step : acceptor_.steps(set)) (*row)[step.label] = step.next;
        rows_[set] = std::move(row);
    }
    return *rows_[set];
}

void AcceptorOverTokens::check(std::int32_t state) const {
    if (state < 0 || state >= num_states()) fst::refuse("expected a state below ", num_states(), ", got ", state);
}

AcceptorOverTokens::Step AcceptorOverTokens::step(std::int32_t state, std::int64_t token) {
    check(state);
    if (token < 0 || token >= vocab_size_) return {kNone, 0};
    if (std::ranges::find(end_tokens_, token) != end_tokens_.end()) {
        const double cost = acceptor_.final_cost(state);
        return std::isinf(cost) ? Step{kNone, 0} : Step{Acceptor::kEmpty, cost};
    }
    double total = 0;
    const auto follow = [&](std::int32_t label) {
        const Acceptor::Step* const step = acceptor_.step(state, label);
        if (step == nullptr) return false;
        total += step->cost;
        state = step->next;
        return true;
    };
    if (trie_ == nullptr) return follow(static_cast<std::int32_t>(token) + 1) ? Step{state, total} : Step{kNone, 0};
    const std::span<const std::uint8_t> bytes = trie_->bytes(static_cast<std::int32_t>(token));
    if (bytes.empty() || !std::ranges::all_of(bytes, follow)) return {kNone, 0};
    return {boundary(state), total};
}

void AcceptorOverTokens::legal(std::int32_t state, std::span<std::uint8_t> mask) {
    check(state);
    if (trie_ == nullptr) {
        for (const Acceptor::Step& step : acceptor_.steps(state)) mask[step.label - 1] = 1;
    } else {
        path_.assign(trie_->longest() + 1, state);
        for (std::int32_t at = 0; at < trie_->size();) {
            const TokenTrie::Node& node = trie_->node(at);
            const std::int32_t next = row(path_[node.depth - 1])[node.byte];
            if (next == kNone) {
                at = node.end;
                continue;
            }
            path_[node.depth] = next;
            if (node.num_tokens > 0 && boundary(next) != kNone)
                for (const std::int32_t token : trie_->tokens(node)) mask[token] = 1;
            ++at;
        }
    }
    const bool ends = !std::isinf(acceptor_.final_cost(state));
    for (const std::int32_t token : end_tokens_) mask[token] = ends;
}

std::vector<std::int32_t> AcceptorOverTokens::forced_labels(std::int32_t state) {
    constexpr std::size_t kMost = 4096;
    check(state);
    std::vector<std::int32_t> labels;
    while (labels.size() < kMost && std::isinf(acceptor_.final_cost(state))) {
        const std::span<const Acceptor::Step> steps = acceptor_.steps(state);
        if (steps.size() != 1) break;
        labels.push_back(steps.front().label);
        state = steps.front().next;
    }
    return labels;
}

bool AcceptorOverTokens::has_longer(std::int32_t state, std::span<const std::uint8_t> bytes) {
    check(state);
    if (trie_ == nullptr) return false;
    path_.assign(trie_->longest() + 1, state);
    for (std::int32_t at = 0; at < trie_->size();) {
        const TokenTrie::Node& node = trie_->node(at);
        const auto depth = static_cast<std::size_t>(node.depth);
        const bool begins = depth > bytes.size() || node.byte == bytes[depth - 1];
        const std::int32_t next = begins ? row(path_[depth - 1])[node.byte] : kNone;
        if (next == kNone) {
            at = node.end;
            continue;
        }
        path_[depth] = next;
        if (depth > bytes.size() && node.num_tokens > 0 && boundary(next) != kNone) return true;
        ++at;
    }
    return false;
}

}  // namespace fst_core
