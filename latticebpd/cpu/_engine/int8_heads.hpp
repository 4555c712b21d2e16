// Products of drafters with int8 weights: a draft need not be exact, and reading the weights takes the time.
// Feed-forward heads are x + D_i silu(U_i x); what U_i reads may be wider than the state x, which comes first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "matrix.hpp"

namespace engine {

// A q8_0 matrix; its inputs are padded with zeros to whole groups.
class Int8Weights {
  public:
    // weights: [outputs, inputs], which are copied.
    Int8Weights(const float* weights, std::size_t outputs, std::size_t inputs,
                const std::shared_ptr<WeightMemory>& memory = std::make_shared<WeightMemory>())
        : inputs_(inputs), matrix_(memory, padded(weights, outputs), outputs, width()) {}

    std::size_t outputs() const { return matrix_.outputs; }
    std::size_t inputs() const { return inputs_; }
    // The weights of one output; to: [inputs in whole groups].
    void row(std::size_t output, float* to) const { matrix_.row(output, to); }

    // x: [rows, inputs]; y: [rows, outputs].
    void multiply(const float* x, std::size_t rows, float* y, const Workers& workers) const {
        if (rows > 0) Input(padded(x, rows), rows, width(), workers).multiply({&matrix_}, y, matrix_.outputs);
    }

  private:
    std::size_t width() const { return (inputs_ + kGroup - 1) / kGroup * kGroup; }

    // The rows, or a padded copy that is valid until the calling thread's next one.
    const float* padded(const float* rows, std::size_t count) const {
        if (width() == inputs_) return rows;
        thread_local std::vector<float> buffer;
        buffer.assign(count * width(), 0.0f);
        for (std::size_t row = 0; row < count; ++row)
            std::copy_n(rows + row * inputs_, inputs_, buffer.data() + row * width());
        return buffer.data();
    }

    std::size_t inputs_;
    Matrix matrix_;
};

class Int8Heads {
  public:
    // up: [heads, inner, inputs]; down: [heads, size, inner]; they are copied.
    Int8Heads(const float* up, const float* down, std::size_t heads, std::size_t inner, std::size_t size,
              std::size_t inputs)
        : size_(size), inner_(inner), inputs_(inputs) {
        const auto memory = std::make_shared<WeightMemory>();
        for (std::size_t head = 0; head < heads; ++head) {
            up_.emplace_back(up + head * inner * inputs, inner, inputs, memory);
            down_.emplace_back(down + head * inner * size, size, inner, memory);
        }
    }

    std::size_t heads() const { return up_.size(); }
    std::size_t inputs() const { return inputs_; }
    std::size_t size() const { return size_; }

    // x: [rows, inputs]; to: [rows, heads, size] of the first `heads` heads.
    void states(const float* x, std::size_t rows, std::size_t heads, float* to, const Workers& workers) const {
        const std::size_t padded = (rows * inner_ + kOutputs - 1) / kOutputs * kOutputs;
        thread_local std::vector<float> inner, product;  // kept: an allocation costs more than filling it
        inner.resize(std::max(inner.size(), padded));
        product.resize(std::max(product.size(), rows * size_));
        for (std::size_t head = 0; head < heads; ++head) {
            up_[head].multiply(x, rows, inner.data(), workers);
            workers.operations.gate(Activation::kSilu, inner.data(), nullptr, padded, inner.data());
            down_[head].multiply(inner.data(), rows, product.data(), workers);
            for (std::size_t row = 0; row < rows; ++row)
                for (std::size_t i = 0; i < size_; ++i)
                    to[(row * heads + head) * size_ + i] = x[row * inputs_ + i] + product[row * size_ + i];
        }
    }

  private:
    std::size_t size_, inner_, inputs_;
    std::deque<Int8Weights> up_, down_;
};

}  // namespace engine
