// Transitions of heads, which tie a slot's tokens to those of the slot before, with weights of 8 bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "int8_heads.hpp"

namespace engine {

using SharedInt8Weights = std::shared_ptr<const Int8Weights>;

constexpr double kEpsilon = 1e-6;  // added to the mean square of a vector, which may be padding's embedding, all zeros

// In index, over the root mean square.
inline void normalise(float* x, std::size_t size) {
    double squares = 0.0;
    for (std::size_t i = 0; i < size; ++i) squares += static_cast<double>(x[i]) * x[i];
    const auto root = static_cast<float>(std::sqrt(squares / static_cast<double>(size) + kEpsilon));
    for (std::size_t i = 0; i < size; ++i) x[i] /= root;
}

// The products of a matrix and tokens' embeddings, each computed when it is first asked for. Not for several threads.
class TokenProducts {
  public:
    // weights: [width, inputs]; embeddings: [tokens, inputs].
    TokenProducts(const float* weights, std::size_t width, SharedInt8Weights embeddings, bool normalised)
        : width_(width), step_((width + kOutputs - 1) / kOutputs * kOutputs), normalised_(normalised),
          embeddings_(std::move(embeddings)), weights_(weights, width, embeddings_->inputs()),
          known_(embeddings_->outputs()), products_(new float[embeddings_->outputs() * step_]) {}

    std::size_t step() const { return step_; }

    // [step] of a token that was computed, padded with zeros.
    const float* of(std::int32_t token) const { return products_.get() + static_cast<std::size_t>(token) * step_; }

    void compute(const std::int32_t* tokens, std::size_t count, const Workers& workers) {
        std::vector<std::size_t> missing;
        for (std::size_t i = 0; i < count; ++i)
            if (const auto token = static_cast<std::size_t>(tokens[i]); known_.at(token) == 0) missing.push_back(token);
        std::sort(missing.begin(), missing.end());
        missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
        const std::size_t inputs = embeddings_->inputs();
        std::vector<float> rows(missing.size() * inputs + kGroup), products(missing.size() * width_);
        for (std::size_t i = 0; i < missing.size(); ++i) {
            embeddings_->row(missing[i], &rows[i * inputs]);
            if (normalised_) normalise(&rows[i * inputs], inputs);
        }
        weights_.multiply(rows.data(), missing.size(), products.data(), workers);
        for (std::size_t i = 0; i < missing.size(); ++i) {
            float* to = products_.get() + missing[i] * step_;
            std::fill(std::copy_n(products.data() + i * width_, width_, to), to + step_, 0.0f);
            known_[missing[i]] = 1;
        }
    }

  private:
    std::size_t width_, step_;
    bool normalised_;
    SharedInt8Weights embeddings_;
    Int8Weights weights_;
    std::vector<char> known_;  // by token
    std::unique_ptr<float[]> products_;
};

class Int8Transitions {
  public:
    // up: [2, width, size], of a state and of the normalised embedding of the token before; down: [width, size];
    // embeddings: [tokens, size].
    Int8Transitions(const float* up, const float* down, std::size_t width, const SharedInt8Weights& embeddings)
        : size_(embeddings->inputs()), own_(up, width, size_), before_(up + width * size_, width, embeddings, true),
          after_(down, width, embeddings, false) {}

    // states: [slots, size]; tokens, log_probs: [slots, k]; to: [slots - 1, k, k] the log-probability of each of a
    // slot's tokens and what the transitions add to it after each of the slot before.
    void pair_scores(const float* states, const std::int32_t* tokens, const float* log_probs, std::size_t slots,
                     std::size_t k, float* to, const Workers& workers) {
        const std::size_t pairs = (slots - 1) * k, step = before_.step();
        before_.compute(tokens, pairs, workers);
        after_.compute(tokens + k, pairs, workers);
        std::vector<float> own(slots * step), inner(step);
        std::vector<const float*> after(k);
        own_.multiply(states + size_, slots - 1, own.data(), workers);
        for (std::size_t i = 0; i < pairs; ++i, to += k) {
            const std::size_t slot = i / k;
            for (std::size_t j = 0; j < k; ++j) after[j] = after_.of(tokens[(slot + 1) * k + j]);
            std::copy_n(before_.of(tokens[i]), step, inner.data());
            workers.operations.add(own.data() + slot * own_.outputs(), own_.outputs(), inner.data());
            workers.operations.gate(Activation::kSilu, inner.data(), nullptr, step, inner.data());
            workers.operations.products(inner.data(), after.data(), k, step, to);
            workers.operations.add(log_probs + (slot + 1) * k, k, to);
        }
    }

  private:
    std::size_t size_;
    Int8Weights own_;
    TokenProducts before_, after_;
};

}  // namespace engine
