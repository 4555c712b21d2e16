// Lattices of heads after a model's states, in one call: inputs, best tokens, transitions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "chains.hpp"
#include "top_k.hpp"
#include "transitions.hpp"

namespace engine {

class HeadLattices {
  public:
    // projection: [tokens, size]; ids: of its tokens; transitions: null: none.
    HeadLattices(std::shared_ptr<const Int8Heads> heads, SharedInt8Weights projection, std::vector<std::int32_t> ids,
                 std::unique_ptr<Int8Transitions> transitions)
        : heads_(std::move(heads)), projection_(std::move(projection)), ids_(std::move(ids)),
          transitions_(std::move(transitions)) {}

    std::size_t inputs() const { return heads_->inputs(); }
    std::size_t tokens() const { return ids_.size(); }
    std::size_t heads() const { return heads_->heads(); }
    bool has_transitions() const { return transitions_ != nullptr; }

    // x: [rows, inputs], what heads read: the final state, then others and an embedding, which are normalised here.
    // tokens, log_probs: [rows, slots, k]; pairs: [rows, slots - 1, k, k], or null: without transitions.
    void lattices(const float* x, std::size_t rows, std::size_t slots, std::size_t k, std::int32_t* tokens,
                  float* log_probs, float* pairs, const Workers& workers) {
        const std::size_t size = projection_->inputs(), width = heads_->inputs();
        const std::size_t count = rows * slots;
        thread_local std::vector<float> logits;  // kept: an allocation costs more than filling it
        logits.resize(std::max(logits.size(), count * projection_->outputs()));
        std::vector<float> inputs(x, x + rows * width), states(count * size), own(count * k), log_sums(count);
        for (std::size_t row = 0; row < rows; ++row)
            for (std::size_t i = size; i < width; i += size) normalise(&inputs[row * width + i], size);
        heads_->states(inputs.data(), rows, slots, states.data(), workers);
        projection_->multiply(states.data(), count, logits.data(), workers);
        TopK{logits.data(), projection_->outputs(), k, own.data(), tokens, log_sums.data()}.rows(count, workers);
        for (std::size_t i = 0; i < own.size(); ++i)
            if (!std::isfinite(own[i] -= log_sums[i / k]))
                fst::refuse("expected finite states, which heads read, got others");
        if (pairs == nullptr) std::copy(own.begin(), own.end(), log_probs);
        else {
            const std::lock_guard<std::mutex> lock(keeping_);
            for (std::size_t row = 0; row < rows; ++row) {
                const std::size_t at = row * slots * k;
                float* to = pairs + row * (slots - 1) * k * k;
                transitions_->pair_scores(&states[row * slots * size], tokens + at, &own[at], slots, k, to, workers);
                chain_weights(&own[at], &own[at], slots, k, to, log_probs + at, workers.operations);
            }
        }
        for (std::size_t i = 0; i < own.size(); ++i) tokens[i] = ids_[static_cast<std::size_t>(tokens[i])];
    }

  private:
    std::shared_ptr<const Int8Heads> heads_;
    SharedInt8Weights projection_;
    std::vector<std::int32_t> ids_;
    std::unique_ptr<Int8Transitions> transitions_;
    std::mutex keeping_;  // transitions keep what they compute
};

}  // namespace engine
