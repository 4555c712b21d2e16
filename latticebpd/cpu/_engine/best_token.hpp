// The argmax of the logits, for greedy decoding: most tokens are excluded by the upper bits of their weights.
//
// Of 8-bit weights the upper six are read first. A logit differs from this approximation by at most the norm of the
// token's lower bits times the norm of the state (Cauchy-Schwarz). So exact logits are computed only for tokens that
// may reach that of the best approximation: for SmolLM2 mostly fewer than ten of 49,152. The argmax is exact.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "matrix.hpp"

namespace engine {

class BestToken {
  public:
    BestToken(SharedMatrix projection, float softcap) : projection_(std::move(projection)), softcap_(softcap) {}

    // states: [rows, inputs]; to: [rows], of equal logits the lowest token.
    void find(const float* states, std::size_t rows, std::int64_t* to, const Workers& workers) const {
        Input input(states, rows, projection_->inputs, workers);
        if (is_quantized(projection_->type)) input.quantize();
        const bool few = rows <= workers.operations.approximated;
        // When it is first needed, since not every program decodes greedily. A bias is not in the bound, and of capped
        // logits those of other tokens may become equal.
        if (few && projection_->type == Type::kQ80 && projection_->panels().bias == nullptr && softcap_ == 0.0f)
            std::call_once(once_, [&] { upper_ = projection_->upper_bits(errors_); });
        const auto best = maxima(input, rows, few && upper_ ? candidates(input, rows, states) : ranges());
        for (std::size_t row = 0; row < rows; ++row) to[row] = best[row].token;
    }

  private:
    struct Maximum {
        float logit;
        std::int64_t token;
    };
    struct PanelRange {
        std::size_t begin, end;
    };

    // All panels, so many at a time that logits stay in the cache.
    std::vector<PanelRange> ranges() const {
        constexpr std::size_t kPanels = 16;
        std::vector<PanelRange> all;
        for (std::size_t panel = 0; panel < projection_->count(); panel += kPanels)
            all.push_back({panel, std::min(projection_->count(), panel + kPanels)});
        return all;
    }

    // [rows] the maxima of the exact logits of ranges, which ascend.
    std::vector<Maximum> maxima(const Input& input, std::size_t rows, const std::vector<PanelRange>& some) const {
        std::vector<Maximum> best(some.size() * rows);
        input.workers().run(some.size(), [&](std::size_t i) {
            thread_local Scratch<float> scratch;
            const std::size_t first = some[i].begin * projection_->width();
            const std::size_t width = some[i].end * projection_->width() - first;
            float* logits = scratch.of(rows * width);
            input.panels(*projection_, some[i].begin, some[i].end, logits, width);
            for (std::size_t row = 0; row < rows; ++row, logits += width) {
                const std::size_t size = std::min(width, projection_->outputs - first);
                if (softcap_ != 0.0f) input.workers().operations.softcap(logits, size, softcap_);
                const std::size_t at = input.workers().operations.argmax(logits, size);
                best[i * rows + row] = {logits[at], static_cast<std::int64_t>(first + at)};
            }
        });
        for (std::size_t i = rows; i < best.size(); ++i)
            if (best[i].logit > best[i % rows].logit) best[i % rows] = best[i];
        return best;
    }

    // The panels with a token whose logit may be at least the exact one of the best approximation.
    std::vector<PanelRange> candidates(Input& input, std::size_t rows, const float* states) const {
        thread_local Scratch<float> scratch;
        const std::size_t count = upper_->count(), step = count * kOutputs, size = upper_->inputs;
        float* logits = scratch.of(rows * step);
        for (std::size_t row = 1; row <= rows; ++row)  // the last panel may have fewer outputs
            std::fill_n(logits + row * step - kOutputs, kOutputs, 0.0f);
        input.multiply({upper_.get()}, logits, step);
        std::vector<std::uint8_t> marked(count);
        for (std::size_t row = 0; row < rows; ++row, logits += step, states += size) {
            const std::size_t panel = input.workers().operations.argmax(logits, upper_->outputs) / kOutputs;
            const float least = maxima(input, rows, {{panel, panel + 1}})[row].logit;
            double squares = 0.0;
            for (std::size_t i = 0; i < size; ++i) squares += static_cast<double>(states[i]) * states[i];
            // Rounding makes no group's norm larger by more than 2.3 %.
            const float norm = static_cast<float>(1.03 * std::sqrt(squares));
            marked[panel] = 1;
            input.workers().operations.mark_candidates(logits, errors_.data(), count, norm, least, marked.data());
        }
        std::vector<PanelRange> some;
        for (std::size_t panel = 0; panel < count; ++panel)
            if (marked[panel] != 0) some.push_back({panel, panel + 1});
        return some;
    }

    SharedMatrix projection_;
    float softcap_;
    mutable std::once_flag once_;
    mutable SharedMatrix upper_;         // null: exact logits of all tokens
    mutable std::vector<float> errors_;  // by token, of the approximation, for a state of norm 1
};

}  // namespace engine
