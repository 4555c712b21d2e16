// The logits of a few tokens after each state: only the panels that hold them are read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "matrix.hpp"

namespace engine {

// states: [counts.size(), inputs]; tokens: counts[0] of the first state, ascending, then those of the others; to: as
// many logits, those of the full product bit for bit.
inline void some_logits(const Matrix& projection, float softcap, const float* states,
                        const std::vector<std::size_t>& counts, const std::int64_t* tokens, float* to,
                        const Workers& workers) {
    constexpr std::size_t kTokens = 64;
    const std::size_t width = projection.width();
    for (const std::size_t count : counts) {
        Input input(states, 1, projection.inputs, workers);
        if (is_quantized(projection.type)) input.quantize();
        workers.run((count + kTokens - 1) / kTokens, [&](std::size_t part) {
            thread_local Scratch<float> scratch;
            float* logits = scratch.of(width);
            std::size_t panel = projection.count();
            for (std::size_t i = part * kTokens; i < std::min(count, (part + 1) * kTokens); ++i) {
                const auto token = static_cast<std::size_t>(tokens[i]);
                if (token / width != panel) {
                    panel = token / width;
                    input.panels(projection, panel, panel + 1, logits, width);
                    const std::size_t size = std::min(width, projection.outputs - panel * width);
                    if (softcap != 0.0f) workers.operations.softcap(logits, size, softcap);
                }
                to[i] = logits[token % width];
            }
        });
        states += projection.inputs, tokens += count, to += count;
    }
}

}  // namespace engine
