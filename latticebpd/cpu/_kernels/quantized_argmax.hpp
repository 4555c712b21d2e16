// argmax of a product, y[o] = sum_i w[o, i] x[i] + b[o], exact, from reading a quarter of its weights.
//
// The product with int8 weights (int8_linear.hpp) gives every output within a bound (norms are Euclidean):
//
//     |s t sum_i q[o, i] z[i] - sum_i w[o, i] x[i]| <= |w - s q| |x| + |s q| |x - t z|    and float32's own rounding
//
// Only outputs that could be the largest within their bounds, some ten of tens of thousands, are computed in float32
// (linear.hpp). So the result is the argmax of the exact product; of equal outputs, the lowest index.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "int8_linear.hpp"
#include "linear.hpp"
#include "simd_lanes.hpp"

namespace cpu_kernels {

class QuantizedArgmax {
  public:
    // panels: of the same weight [outputs, inputs] and bias, [outputs] or null; they must outlive this.
    QuantizedArgmax(const Panels& panels, const Matrix& matrix, std::size_t inputs, Isa isa, std::size_t int8_isa)
        : panels_(panels),
          int8_(matrix.weight, matrix.outputs, inputs, int8_isa),
          outputs_(matrix.outputs),
          inputs_(inputs),
          isa_(isa),
          errors_(outputs_),
          norms_(outputs_),
          biases_(outputs_) {
        if (matrix.bias != nullptr) std::copy_n(matrix.bias, outputs_, biases_.begin());
        const double rounding = 2.0 * static_cast<double>(inputs + 2) * std::numeric_limits<float>::epsilon();
        for (std::size_t o = 0; o < outputs_; ++o) {
            double error = 0, quantized = 0, exact = 0;
            for (std::size_t i = 0; i < inputs; ++i) {
                const double w = matrix.weight[o * inputs + i], q = int8_.weight(o, i);
                error += (w - q) * (w - q);
                quantized += q * q;
                exact += w * w;
            }
            errors_[o] = static_cast<float>(1.001 * (std::sqrt(error) + rounding * std::sqrt(exact)));
            norms_[o] = static_cast<float>(1.001 * std::sqrt(quantized));
            largest_ = std::max(largest_, std::sqrt(exact) + std::abs(biases_[o]));
            finite_ = finite_ && std::isfinite(exact) && std::isfinite(biases_[o]);
        }
    }

    // x: [rows, inputs]; to: [rows] each row's argmax; -1 where numbers are too large, too small or NaN for bounds.
    void argmax(const float* x, std::size_t rows, std::int64_t* to, std::size_t threads) const {
        thread_local std::vector<float> products;  // kept: an allocation costs more than filling it
        products.resize(rows * outputs_);
        int8_.multiply(x, rows, products.data(), threads);
        for_each_row(Rows{*this, x, products.data(), to}, rows, threads, isa_);
    }

  private:
    static constexpr std::size_t kGroup = 32 * kLanes;
    static constexpr float kTiny = 1e-35f;  // what numbers near the smallest float may lose

    struct Rows {
        const QuantizedArgmax& of;
        const float* inputs;
        float* products;
        std::int64_t* to;

        [[gnu::always_inline]] void row(std::size_t number) const {
            const float* x = inputs + number * of.inputs_;
            float* y = products + number * of.outputs_;
            double squares = 0;
            float most = 0;
            for (std::size_t i = 0; i < of.inputs_; ++i) {
                squares += static_cast<double>(x[i]) * x[i];
                most = std::max(most, std::abs(x[i]));
            }
            to[number] = -1;
            const bool bounded = std::max(std::sqrt(squares), 1.0) * of.largest_ < 1e37;
            if (!of.finite_ || !bounded || (most > 0 && most < 1e-30f)) return;
            const float norm = static_cast<float>(1.0001 * std::sqrt(squares));
            const float step = most / of.int8_.most();
            const float error = static_cast<float>(0.51 * std::sqrt(static_cast<double>(of.inputs_))) * step;

            // Upper bounds of groups, and the largest lower bound: only groups that reach it are searched.
            thread_local std::vector<float> upper;
            const std::size_t groups = of.outputs_ / kGroup;  // outputs after them are bounded one by one
            upper.resize(groups);
            Lanes lowest = Lanes{} - std::numeric_limits<float>::infinity();
            for (std::size_t group = 0; group < groups; ++group) {
                Lanes highest = Lanes{} - std::numeric_limits<float>::infinity();
                for (std::size_t o = group * kGroup; o < (group + 1) * kGroup; o += kLanes) {
                    const Lanes product = lanes(y + o), value = product + lanes(&of.biases_[o]);
                    const Lanes sizes = (value < 0.0f ? -value : value) + (product < 0.0f ? -product : product);
                    const Lanes rounded = lanes(&of.errors_[o]) * norm + lanes(&of.norms_[o]) * error;
                    const Lanes margin = rounded + sizes * 1e-6f + kTiny, low = value - margin, high = value + margin;
                    lowest = low > lowest ? low : lowest;
                    highest = high > highest ? high : highest;
                }
                upper[group] = max_lane(highest);
            }
            float lower = max_lane(lowest);
            for (std::size_t o = groups * kGroup; o < of.outputs_; ++o)
                lower = std::max(lower, of.lower_bound(y, o, norm, error));

            thread_local std::vector<std::size_t> candidates;
            candidates.clear();
            for (std::size_t group = 0; group <= groups; ++group)
                if (group == groups || upper[group] >= lower)
                    for (std::size_t o = group * kGroup; o < std::min(of.outputs_, (group + 1) * kGroup); ++o)
                        if (2 * (y[o] + of.biases_[o]) - of.lower_bound(y, o, norm, error) >= lower)
                            candidates.push_back(o);

            std::size_t panel = std::numeric_limits<std::size_t>::max();  // the last one computed exactly
            for (const std::size_t o : candidates) {
                if (o / of.panels_.width() != panel) of.panels_.panel(x, panel = o / of.panels_.width(), y);
                if (to[number] < 0 || y[o] > y[to[number]]) to[number] = static_cast<std::int64_t>(o);
            }
        }
    };

    // The least that an output can be; the most is as far above its int8 value.
    [[gnu::always_inline]] float lower_bound(const float* y, std::size_t o, float norm, float error) const {
        const float value = y[o] + biases_[o];
        return value - (errors_[o] * norm + norms_[o] * error + (std::abs(value) + std::abs(y[o])) * 1e-6f + kTiny);
    }

    const Panels& panels_;
    Int8Weights int8_;
    std::size_t outputs_, inputs_;
    Isa isa_;
    std::vector<float> errors_, norms_, biases_;  // of each output: |w - s q|, |s q| and its bias
    double largest_ = 0;
    bool finite_ = true;
};

}  // namespace cpu_kernels
