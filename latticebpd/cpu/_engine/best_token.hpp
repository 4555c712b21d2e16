// The token of the largest logit, which few bits of the weights tell from nearly all others.
//
// Of 8-bit weights the upper six are read first. No logit differs from theirs by more than the norm of a token's lower
// bits times that of the state (Cauchy-Schwarz), so only tokens within that distance of the best one found are computed
// whole: of SmolLM2's 49,152 mostly fewer than ten. The token is the same bit for bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "matrix.hpp"

namespace engine {

class BestToken {
  public:
    BestToken() = default;
    BestToken(SharedMatrix projection, float softcap) : projection_(std::move(projection)), softcap_(softcap) {
        // A bias is not in the bound; of capped logits those of other tokens may become equal.
        if (projection_->type == Type::kQ80 && projection_->panels().bias == nullptr && softcap == 0.0f)
            upper_ = projection_->upper_bits(rest_);
    }

    // states: [rows, inputs]; to: [rows], of equal logits the lowest token.
    void find(const float* states, std::size_t rows, std::int64_t* to, const Workers& workers) const {
        Input input(states, rows, projection_->inputs, workers);
        if (is_quantized(projection_->type)) input.round();
        // Of more rows the products take the time, not the weights.
        const bool few = upper_ != nullptr && rows <= workers.operations.together;
        const std::vector<Found> best = found(input, rows, few ? promising(input, rows, states) : ranges(*projection_));
        for (std::size_t row = 0; row < rows; ++row) to[row] = best[row].token;
    }

  private:
    struct Found {
        float logit;
        std::int64_t token;
    };
    struct Range {
        std::size_t begin, end;  // panels
    };

    // All panels, so many at a time that logits stay in the cache.
    static std::vector<Range> ranges(const Matrix& matrix) {
        constexpr std::size_t kPanels = 16;
        std::vector<Range> all;
        for (std::size_t panel = 0; panel < matrix.count(); panel += kPanels)
            all.push_back({panel, std::min(matrix.count(), panel + kPanels)});
        return all;
    }

    // [rows] the largest logits of ranges, which ascend.
    std::vector<Found> found(const Input& input, std::size_t rows, const std::vector<Range>& some) const {
        std::vector<Found> best(some.size() * rows);
        input.workers().run(some.size(), [&](std::size_t i) {
            thread_local Scratch<float> scratch;
            const std::size_t first = some[i].begin * projection_->width();
            const std::size_t width = some[i].end * projection_->width() - first;
            float* logits = scratch.of(rows * width);
            input.panels(*projection_, some[i].begin, some[i].end, logits, width);
            for (std::size_t row = 0; row < rows; ++row, logits += width) {
                const std::size_t size = std::min(width, projection_->outputs - first);
                if (softcap_ != 0.0f) input.workers().operations.softcap(logits, size, softcap_);
                const std::size_t at = input.workers().operations.largest(logits, size);
                best[i * rows + row] = {logits[at], static_cast<std::int64_t>(first + at)};
            }
        });
        for (std::size_t i = rows; i < best.size(); ++i)
            if (best[i].logit > best[i % rows].logit) best[i % rows] = best[i];
        return best;
    }

    // The panels of the tokens whose logits are not certainly smaller than that of the token whose upper bits say most.
    std::vector<Range> promising(const Input& input, std::size_t rows, const float* states) const {
        thread_local Scratch<float> scratch;
        const std::size_t count = upper_->count(), step = count * kOutputs, size = upper_->inputs;
        float* logits = scratch.of(rows * step);
        for (std::size_t row = 1; row <= rows; ++row)  // the last panel may have fewer outputs
            std::fill_n(logits + row * step - kOutputs, kOutputs, 0.0f);
        const std::vector<Range> all = ranges(*upper_);
        input.workers().run(all.size(), [&](std::size_t i) {
            input.panels(*upper_, all[i].begin, all[i].end, logits + all[i].begin * kOutputs, step);
        });
        std::vector<std::uint8_t> reached(count);
        for (std::size_t row = 0; row < rows; ++row, logits += step, states += size) {
            const std::size_t panel = input.workers().operations.largest(logits, upper_->outputs) / kOutputs;
            const float least = found(input, rows, {{panel, panel + 1}})[row].logit;
            double squares = 0.0;
            for (std::size_t i = 0; i < size; ++i) squares += static_cast<double>(states[i]) * states[i];
            // Rounding makes no group's norm larger by more than 2.3 %.
            const float norm = static_cast<float>(1.03 * std::sqrt(squares));
            reached[panel] = 1;
            input.workers().operations.reach(logits, rest_.data(), count, norm, least, reached.data());
        }
        std::vector<Range> some;
        for (std::size_t panel = 0; panel < count; ++panel)
            if (reached[panel] != 0) some.push_back({panel, panel + 1});
        return some;
    }

    SharedMatrix projection_, upper_;  // upper_: null if all weights are read
    std::vector<float> rest_;          // by token the norm of what the upper bits leave out
    float softcap_ = 0.0f;
};

}  // namespace engine
