// The largest output of a product, y[o] = sum_i w[o, i] x[i] + b[o], exactly, from reading a quarter of its weights.
//
// The product with weights rounded to 8 bits (rounded.hpp) tells every output within a bound:
//
//     |s t sum_i q[o, i] z[i] - sum_i w[o, i] x[i]| <= |w - s q| |x| + |s q| |x - t z|    (lengths of vectors), and what float32 rounds away.
//
// Only outputs that could be the largest within their bounds, a handful of tens of thousands, are computed as linear.hpp computes them;
// so the largest is that of the whole product, of equal ones the first.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "lanes.hpp"
#include "layer.hpp"
#include "linear.hpp"
#include "rounded.hpp"

namespace latticebpd {

class Screened {
  public:
    // panels: of the same weight [outputs, inputs] and bias, [outputs] or null; they must outlive this.  kinds: which of the processor's.
    Screened(const Panels& panels, const float* weight, const float* bias, std::size_t outputs, std::size_t inputs, std::size_t kind,
             std::size_t rounded_kind)
        : panels_(panels),
          rounded_(weight, outputs, inputs, rounded_kind),
          outputs_(outputs),
          inputs_(inputs),
          lanes_(kinds().at(kind).lanes),
          missed_(outputs),
          lengths_(outputs),
          biases_(outputs) {
        if (bias != nullptr) std::copy_n(bias, outputs, biases_.begin());
        const double rounding = 2.0 * static_cast<double>(inputs + 2) * std::numeric_limits<float>::epsilon();
        for (std::size_t o = 0; o < outputs; ++o) {
            double missed = 0, length = 0, whole = 0;
            for (std::size_t i = 0; i < inputs; ++i) {
                const double w = weight[o * inputs + i], q = rounded_.weight(o, i);
                missed += (w - q) * (w - q);
                length += q * q;
                whole += w * w;
            }
            missed_[o] = static_cast<float>(1.001 * (std::sqrt(missed) + rounding * std::sqrt(whole)));
            lengths_[o] = static_cast<float>(1.001 * std::sqrt(length));
            longest_ = std::max(longest_, std::sqrt(whole) + std::abs(biases_[o]));
            finite_ = finite_ && std::isfinite(whole) && std::isfinite(biases_[o]);
        }
    }

    // given: [rows, inputs]; to: [rows] the place of each row's largest output; -1 where numbers are too large, or none, to tell by bounds.
    void largest(const float* given, std::size_t rows, std::int64_t* to, std::size_t threads) const {
        thread_local std::vector<float> products;  // kept: new memory costs more than what is done in it
        products.resize(rows * outputs_);
        rounded_.multiply(given, rows, products.data(), threads);
        rows_of(Row{*this, given, products.data(), to}, rows, threads, lanes_);
    }

  private:
    static constexpr std::size_t kGroup = 32 * kLanes;
    static constexpr float kLeast = 1e-35f;  // what numbers near the smallest may lose

    struct Row {
        const Screened& of;
        const float* given;
        float* products;
        std::int64_t* to;

        [[gnu::always_inline]] void row(std::size_t number) const {
            const float* x = given + number * of.inputs_;
            float* y = products + number * of.outputs_;
            double squares = 0;
            float most = 0;
            for (std::size_t i = 0; i < of.inputs_; ++i) {
                squares += static_cast<double>(x[i]) * x[i];
                most = std::max(most, std::abs(x[i]));
            }
            to[number] = -1;
            if (!of.finite_ || !(std::max(std::sqrt(squares), 1.0) * of.longest_ < 1e37) || (most > 0 && most < 1e-30f)) return;
            const float length = static_cast<float>(1.0001 * std::sqrt(squares));
            const float missed = static_cast<float>(0.51 * std::sqrt(static_cast<double>(of.inputs_))) * (most / of.rounded_.most());

            // Upper bounds of groups, and the largest lower bound: only groups that reach it are looked into.
            thread_local std::vector<float> uppers;
            const std::size_t whole = of.outputs_ / kGroup;  // the outputs behind them are looked at one by one
            uppers.resize(whole);
            Lanes least = Lanes{} - std::numeric_limits<float>::infinity();
            for (std::size_t group = 0; group < whole; ++group) {
                Lanes highest = Lanes{} - std::numeric_limits<float>::infinity();
                for (std::size_t o = group * kGroup; o < (group + 1) * kGroup; o += kLanes) {
                    const Lanes value = at(y, o) + at(of.biases_.data(), o), sizes = (value < 0.0f ? -value : value) + (at(y, o) < 0.0f ? -at(y, o) : at(y, o));
                    const Lanes off = at(of.missed_.data(), o) * length + at(of.lengths_.data(), o) * missed + sizes * 1e-6f + kLeast;
                    const Lanes low = value - off, high = value + off;
                    least = low > least ? low : least;
                    highest = high > highest ? high : highest;
                }
                uppers[group] = top(highest);
            }
            float lower = top(least);
            for (std::size_t o = whole * kGroup; o < of.outputs_; ++o) lower = std::max(lower, of.low(y, o, length, missed));

            thread_local std::vector<std::size_t> found;
            found.clear();
            for (std::size_t group = 0; group <= whole; ++group)
                if (group == whole || uppers[group] >= lower)
                    for (std::size_t o = group * kGroup; o < std::min(of.outputs_, (group + 1) * kGroup); ++o)
                        if (2 * (y[o] + of.biases_[o]) - of.low(y, o, length, missed) >= lower) found.push_back(o);

            // A panel's exact outputs take the place of the rounded ones.
            std::size_t panel = std::numeric_limits<std::size_t>::max();
            for (const std::size_t o : found) {
                if (o / of.panels_.width() != panel) of.panels_.panel(x, panel = o / of.panels_.width(), y);
                if (to[number] < 0 || y[o] > y[to[number]]) to[number] = static_cast<std::int64_t>(o);
            }
        }

        [[gnu::always_inline]] static const Lanes& at(const float* from, std::size_t o) { return *reinterpret_cast<const Lanes*>(from + o); }

        [[gnu::always_inline]] static float top(const Lanes& lanes) {
            float found = lanes[0];
            for (std::size_t lane = 1; lane < kLanes; ++lane) found = std::max(found, lanes[lane]);
            return found;
        }
    };

    // The least that an output can be, and as far above its rounded value the most.
    [[gnu::always_inline]] float low(const float* y, std::size_t o, float length, float missed) const {
        const float value = y[o] + biases_[o];
        return value - (missed_[o] * length + lengths_[o] * missed + (std::abs(value) + std::abs(y[o])) * 1e-6f + kLeast);
    }

    const Panels& panels_;
    Rounded rounded_;
    std::size_t outputs_, inputs_, lanes_;
    std::vector<float> missed_, lengths_, biases_;  // of every output: what rounding misses of its weights, their length, its bias
    double longest_ = 0;
    bool finite_ = true;
};

}  // namespace latticebpd
