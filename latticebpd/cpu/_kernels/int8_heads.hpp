// Feed-forward block heads, x + D_i silu(U_i x), with int8 weights: one call for all of them, and for their best tokens.
// What U_i reads may be wider than the state x, which comes first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "instruction_sets.hpp"
#include "int8_linear.hpp"
#include "simd_lanes.hpp"
#include "top_k.hpp"

namespace cpu_kernels {

// silu(x) in place, [rows, kLanes].
struct Silu {
    float* numbers;

    [[gnu::always_inline]] void row(std::size_t number) const {
        Lanes& x = lanes(numbers + number * kLanes);
        x = silu(x);
    }
};

class Int8Heads {
  public:
    // up: [heads, inner, inputs]; down: [heads, size, inner]; they are copied.
    Int8Heads(const float* up, const float* down, std::size_t heads, std::size_t inner, std::size_t size,
              std::size_t inputs)
        : size_(size), inner_(inner), inputs_(inputs) {
        const auto memory = std::make_shared<engine::WeightMemory>();
        for (std::size_t head = 0; head < heads; ++head) {
            up_.emplace_back(up + head * inner * inputs, inner, inputs, 0, memory);
            down_.emplace_back(down + head * inner * size, size, inner, 0, memory);
        }
    }

    // x: [rows, inputs]; to: [rows, heads, size] of the first `heads` heads.
    void states(const float* x, std::size_t rows, std::size_t heads, float* to, std::size_t threads) const {
        const std::size_t vectors = (rows * inner_ + kLanes - 1) / kLanes;
        thread_local std::vector<float> inner, product;  // kept: an allocation costs more than filling it
        inner.resize(std::max(inner.size(), vectors * kLanes));
        product.resize(std::max(product.size(), rows * size_));
        for (std::size_t head = 0; head < heads; ++head) {
            up_.at(head).multiply(x, rows, inner.data(), threads);
            for_each_row(Silu{inner.data()}, vectors, 1, isas().front());
            down_.at(head).multiply(inner.data(), rows, product.data(), threads);
            for (std::size_t row = 0; row < rows; ++row)
                for (std::size_t i = 0; i < size_; ++i)
                    to[(row * heads + head) * size_ + i] = x[row * inputs_ + i] + product[row * size_ + i];
        }
    }

    // The same, and the k best tokens of each head, as of `TopK`, with their log-probabilities; projection: [tokens,
    // size].
    void top_k(const float* x, std::size_t rows, std::size_t heads, const Int8Weights& projection, std::size_t k,
               std::int32_t* tokens, float* log_probs, float* to, std::size_t threads) const {
        const std::size_t slots = rows * heads, count = projection.outputs();
        thread_local std::vector<float> logits, log_sums;
        logits.resize(std::max(logits.size(), slots * count));
        log_sums.resize(std::max(log_sums.size(), slots));
        states(x, rows, heads, to, threads);
        projection.multiply(to, slots, logits.data(), threads);
        const TopK best{logits.data(), count, k, log_probs, tokens, log_sums.data()};
        for_each_row(best, slots, threads, isas().front());
        for (std::size_t i = 0; i < slots * k; ++i) log_probs[i] -= log_sums[i / k];
    }

  private:
    std::size_t size_, inner_, inputs_;
    std::vector<Int8Weights> up_, down_;
};

}  // namespace cpu_kernels
