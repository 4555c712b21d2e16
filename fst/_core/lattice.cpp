#include "lattice.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace latticebpd {

namespace {

constexpr std::uint32_t kFlagsPerLabel = 64;  // so few wrong maybes that a processor bets against them
constexpr std::uint32_t kMaxFlags = 1u << 16;  // the filter is to stay in cache

std::string spelled(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "+inf" : "-inf";
    char digits[32];
    return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

[[noreturn]] void refuse(const char* name, std::int64_t slot, const std::string& what) {
    throw std::invalid_argument(std::string(name) + "slot " + std::to_string(slot) + ": " + what);
}

}  // namespace

void Lattice::assign(const LatticeView& view, const Model* model, const char* name) {
    if (view.slots < 1 || view.k < 1 || view.k > std::numeric_limits<std::int32_t>::max() / 64 / view.slots)
        throw std::invalid_argument(std::string(name) + "expected tokens [slots, k] with slots and k of at least 1 and fewer than 2^25 in all, got [" +
                                    std::to_string(view.slots) + ", " + std::to_string(view.k) + "]");
    slots_.clear();
    tokens_.clear();
    labels_.clear();
    given_.clear();
    log_probs_.clear();
    keys_.clear();
    key_bounds_.clear();
    columns_.clear();
    buckets_.clear();
    filter_.clear();
    max_columns_ = 0;
    transitions_ = view.slots > 1 ? view.transitions : nullptr;
    k_ = view.k;
    for (std::int64_t t = 0; t < view.slots; ++t) {
        const std::int32_t* tokens = view.tokens + t * view.k;
        const double* log_probs = view.log_probs + t * view.k;
        order_.clear();
        for (std::int32_t c = 0; c < view.k; ++c) {
            if (tokens[c] == -1) continue;
            if (tokens[c] < -1 || tokens[c] == std::numeric_limits<std::int32_t>::max())
                refuse(name, t, "expected token ids from 0 to 2^31 - 2, or -1 as padding, got " + std::to_string(tokens[c]));
            if (!(log_probs[c] <= kLargestWeight))  // NaN too
                refuse(name, t, "expected log-probabilities of at most 1e30, got " + spelled(log_probs[c]) + " for token " + std::to_string(tokens[c]));
            order_.emplace_back(tokens[c], c);
        }
        std::sort(order_.begin(), order_.end());
        Slot slot;
        slot.first = static_cast<std::int32_t>(tokens_.size());
        for (std::size_t i = 0; i < order_.size(); ++i) {
            const auto [token, c] = order_[i];
            if (i > 0 && order_[i - 1].first == token)
                refuse(name, t, "expected distinct tokens, got token " + std::to_string(token) + " more than once; keep one column of each");
            if (log_probs[c] <= -kLargestWeight) continue;
            tokens_.push_back(token);
            log_probs_.push_back(log_probs[c]);
            given_.push_back(c);
            labels_.push_back(model != nullptr ? model->label_of(token) : Model::kNoLabel);
        }
        slot.size = static_cast<std::int32_t>(tokens_.size()) - slot.first;
        if (slot.size == 0) refuse(name, t, "expected at least one token with a log-probability above -1e30, got none");
        max_columns_ = std::max(max_columns_, slot.size);
        if (model != nullptr) index_labels(slot);
        slots_.push_back(slot);
    }
    if (transitions_ != nullptr) check_transitions(name);
}

// One quick pass shows that all is well (NaN fails too); what stands at columns that are left out does not matter.
void Lattice::check_transitions(const char* name) const {
    bool fine = true;
    for (std::int64_t i = 0; i < std::int64_t{slots() - 1} * k_ * k_; ++i) fine &= transitions_[i] <= static_cast<float>(kLargestWeight);
    if (fine) return;
    for (std::int32_t t = 1; t < slots(); ++t)
        for (std::int32_t from = slot(t - 1).first; from < slot(t).first; ++from)
            for (std::int32_t to = slot(t).first; to < slot(t).first + slot(t).size; ++to) {
                const float* const row = transitions_ + (std::int64_t{t - 1} * k_ + given_[static_cast<std::size_t>(from)]) * k_;
                if (const float value = row[given_[static_cast<std::size_t>(to)]]; !(value <= static_cast<float>(kLargestWeight)))
                    refuse(name, t, "expected transitions of at most 1e30, got " + spelled(value) + " from token " + std::to_string(token(from)) +
                                        " to token " + std::to_string(token(to)));
            }
}

void Lattice::extend(std::int64_t slots, const Model* model) {
    for (std::int64_t t = 0; t < slots; ++t) {
        Slot slot;
        slot.first = static_cast<std::int32_t>(tokens_.size());
        if (model != nullptr) index_labels(slot);
        slots_.push_back(slot);
    }
}

bool Lattice::has_more_paths(std::uint64_t most) const {
    std::uint64_t paths = 1;  // columns are fewer than 2^25, so that no product overflows before it is compared
    for (const Slot& slot : slots_)
        if ((paths *= static_cast<std::uint64_t>(slot.size)) > most) return true;
    return false;
}

bool Lattice::has_more_prefixes(std::uint64_t most) const {
    std::uint64_t paths = 1, prefixes = 0;
    for (const Slot& slot : slots_) {
        paths *= static_cast<std::uint64_t>(slot.size);
        if ((prefixes += paths) > most) return true;
    }
    return false;
}

void Lattice::index_labels(Slot& slot) {
    order_.clear();
    for (std::int32_t c = 0; c < slot.size; ++c)
        if (const std::int32_t label = labels_[static_cast<std::size_t>(slot.first + c)]; label != Model::kNoLabel) order_.emplace_back(label, c);
    if (!std::is_sorted(order_.begin(), order_.end())) std::sort(order_.begin(), order_.end());  // <unk> breaks the order of tokens

    slot.first_key = static_cast<std::int32_t>(keys_.size());
    for (const auto& [label, c] : order_) {
        if (static_cast<std::int32_t>(keys_.size()) == slot.first_key || keys_.back() != label) {
            keys_.push_back(label);
            key_bounds_.push_back(static_cast<std::int32_t>(columns_.size()));
        }
        columns_.push_back(c);
    }
    slot.num_keys = static_cast<std::int32_t>(keys_.size()) - slot.first_key;
    // The bound that closes the last key is also an entry: it keeps keys_ and key_bounds_ in step.
    keys_.push_back(Model::kNoLabel);
    key_bounds_.push_back(static_cast<std::int32_t>(columns_.size()));

    const std::uint32_t num_flags = std::min(kMaxFlags, std::bit_ceil(kFlagsPerLabel * std::max(1u, static_cast<std::uint32_t>(slot.num_keys))));
    slot.filter_mask = num_flags - 1;
    slot.first_flag = static_cast<std::int32_t>(filter_.size());
    filter_.resize(filter_.size() + num_flags, 0);
    const std::uint32_t num_buckets = std::bit_ceil(2 * static_cast<std::uint32_t>(slot.num_keys) + 2);
    slot.hash_shift = 32 - std::countr_zero(num_buckets);
    slot.first_bucket = static_cast<std::int32_t>(buckets_.size());
    buckets_.resize(buckets_.size() + num_buckets, Bucket{Model::kNoLabel, -1});
    Bucket* buckets = buckets_.data() + slot.first_bucket;
    for (std::int32_t key = 0; key < slot.num_keys; ++key) {
        const std::int32_t label = keys_[static_cast<std::size_t>(slot.first_key + key)];
        filter_[static_cast<std::size_t>(slot.first_flag) + (static_cast<std::uint32_t>(label) & slot.filter_mask)] = 1;
        std::uint32_t at = hash(label, slot.hash_shift);
        while (buckets[at].label != Model::kNoLabel) at = (at + 1) & (num_buckets - 1);
        buckets[at] = {label, key};
    }
}

}  // namespace latticebpd
