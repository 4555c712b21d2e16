// Feed-forward heads for drafts, x + D_i silu(U_i x), their weights rounded: one call for all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lanes.hpp"
#include "layer.hpp"
#include "rounded.hpp"

namespace latticebpd {

// silu(x) in place, vectors of kLanes numbers as rows.
struct Opened {
    float* numbers;

    [[gnu::always_inline]] void row(std::size_t number) const {
        Lanes& gate = *reinterpret_cast<Lanes*>(numbers + number * kLanes);
        Lanes smaller = gate > 0.0f ? -gate : gate;  // e^-|x| never overflows
        exponential(smaller);
        gate = gate * (gate > 0.0f ? Lanes{} + 1.0f : smaller) / (smaller + 1.0f);
    }
};

class RoundedHeads {
  public:
    // up: [heads, inner, size]; down: [heads, size, inner]; they are copied.
    RoundedHeads(const float* up, const float* down, std::size_t heads, std::size_t size, std::size_t inner) : size_(size), inner_(inner) {
        for (std::size_t head = 0; head < heads; ++head) {
            up_.push_back(std::make_unique<Rounded>(up + head * inner * size, inner, size, 0));
            down_.push_back(std::make_unique<Rounded>(down + head * inner * size, size, inner, 0));
        }
    }

    // x: [rows, size]; to: [rows, heads, size] of the first so many heads.
    void states(const float* x, std::size_t rows, std::size_t heads, float* to, std::size_t threads) const {
        const std::size_t vectors = (rows * inner_ + kLanes - 1) / kLanes;
        thread_local std::vector<float> inner, product;  // kept: new memory costs more than what is done in it
        inner.resize(std::max(inner.size(), vectors * kLanes));
        product.resize(std::max(product.size(), rows * size_));
        for (std::size_t head = 0; head < heads; ++head) {
            up_.at(head)->multiply(x, rows, inner.data(), threads);
            rows_of(Opened{inner.data()}, vectors, 1, kinds().front().lanes);
            down_.at(head)->multiply(inner.data(), rows, product.data(), threads);
            for (std::size_t row = 0; row < rows; ++row)
                for (std::size_t i = 0; i < size_; ++i) to[(row * heads + head) * size_ + i] = x[row * size_ + i] + product[row * size_ + i];
        }
    }

  private:
    std::size_t size_, inner_;
    std::vector<std::unique_ptr<Rounded>> up_, down_;
};

}  // namespace latticebpd
