// A decoder layer of Llama's kind without its attention: what is computed for every token by itself.
//
//     before attention:  q, k, v = W (rms_norm(x) n1), q and k rotated by their position
//     after attention:   x' = x + O a,  x' + D (silu(G h) * (U h)) with h = rms_norm(x') n2
//
// Apart from its products, a layer is many small operations; one call does all of them. Results are batch-invariant.
#pragma once

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "linear.hpp"
#include "simd_lanes.hpp"

namespace cpu_kernels {

// sums = x + y, perhaps in place; all [rows, size].
struct ResidualAdd {
    const float *x, *y;
    float* sums;
    std::size_t size;

    [[gnu::always_inline]] void row(std::size_t number) const {
        for (std::size_t i = number * size; i < (number + 1) * size; i += kLanes)
            lanes(sums + i) = lanes(x + i) + lanes(y + i);
    }
};

// x, to: [rows, size]; weights: [size].
struct RmsNorm {
    const float *x, *weights;
    float* to;
    std::size_t size;
    float epsilon;

    [[gnu::always_inline]] void row(std::size_t number) const {
        const float* from = x + number * size;
        Lanes squares = {};
        for (std::size_t i = 0; i < size; i += kLanes) squares += lanes(from + i) * lanes(from + i);
        float total = 0.0f;
        for (std::size_t lane = 0; lane < kLanes; ++lane) total += squares[lane];
        const float scale = 1.0f / std::sqrt(total / static_cast<float>(size) + epsilon);
        for (std::size_t i = 0; i < size; i += kLanes)
            lanes(to + number * size + i) = lanes(from + i) * scale * lanes(weights + i);
    }
};

// Rotary embedding in place, of the first `heads` heads of each row: [rows, all, size].
// cosines, sines: [positions, size]; row i has those of i % positions.
struct Rotary {
    float* numbers;
    const float *cosines, *sines;
    std::size_t heads, all, size, positions;

    [[gnu::always_inline]] void row(std::size_t number) const {
        const float *cosine = cosines + number % positions * size, *sine = sines + number % positions * size;
        const std::size_t half = size / 2;
        for (std::size_t head = 0; head < heads; ++head) {
            float *low = numbers + (number * all + head) * size, *high = low + half;
            for (std::size_t i = 0; i < half; ++i) {
                const float first = low[i], second = high[i];
                low[i] = first * cosine[i] - second * sine[i];
                high[i] = second * cosine[half + i] + first * sine[half + i];
            }
        }
    }
};

// silu(gate) * up; both: [rows, 2, size], to: [rows, size].
struct SwiGlu {
    const float* both;
    float* to;
    std::size_t size;

    [[gnu::always_inline]] void row(std::size_t number) const {
        for (std::size_t i = 0; i < size; i += kLanes) {
            Lanes gate = lanes(both + 2 * number * size + i);
            silu(gate);
            lanes(to + number * size + i) = gate * lanes(both + (2 * number + 1) * size + i);
        }
    }
};

struct LayerShape {
    std::size_t size, heads, groups, head_size, inner;
};

struct NormWeights {
    std::vector<float> weights;
    float epsilon;
};

class LlamaLayer {
  public:
    // matrices: q, k, v, o, gate, up and down, which are copied.
    LlamaLayer(const std::vector<Matrix>& matrices, NormWeights first, NormWeights second, LayerShape shape, Isa isa)
        : queries_({matrices.at(0), matrices.at(1), matrices.at(2)}, shape.size, isa),
          out_({matrices.at(3)}, shape.heads * shape.head_size, isa),
          gates_({matrices.at(4), matrices.at(5)}, shape.size, isa),
          down_({matrices.at(6)}, shape.inner, isa),
          first_(std::move(first)),
          second_(std::move(second)),
          shape_(shape),
          isa_(isa) {}

    // x: [rows, size]; cosines, sines: [positions, head size]; to: [rows, heads + 2 groups, head size].
    void before_attention(const float* x, std::size_t rows, const float* cosines, const float* sines,
                          std::size_t positions, float* to, std::size_t threads) const {
        float* normal = scratch(0, rows * shape_.size);
        for_each_row(RmsNorm{x, first_.weights.data(), normal, shape_.size, first_.epsilon}, rows, threads, isa_);
        queries_.multiply(normal, rows, to, threads);
        const std::size_t rotated = shape_.heads + shape_.groups, all = rotated + shape_.groups;
        for_each_row(Rotary{to, cosines, sines, rotated, all, shape_.head_size, positions}, rows, threads, isa_);
    }

    // x: [rows, size]; attended: [rows, heads, head size]; to: [rows, size].
    void after_attention(const float* x, const float* attended, std::size_t rows, float* to,
                         std::size_t threads) const {
        const std::size_t size = shape_.size, inner = shape_.inner;
        float *product = scratch(0, rows * size), *normal = scratch(1, rows * size);
        float *both = scratch(2, 2 * rows * inner), *gated = scratch(3, rows * inner);
        out_.multiply(attended, rows, product, threads);
        for_each_row(ResidualAdd{x, product, to, size}, rows, threads, isa_);
        for_each_row(RmsNorm{to, second_.weights.data(), normal, size, second_.epsilon}, rows, threads, isa_);
        gates_.multiply(normal, rows, both, threads);
        for_each_row(SwiGlu{both, gated, inner}, rows, threads, isa_);
        down_.multiply(gated, rows, product, threads);
        for_each_row(ResidualAdd{to, product, to, size}, rows, threads, isa_);
    }

  private:
    // Memory of the calling thread for so many numbers, kept: an allocation costs more than filling it.
    static float* scratch(std::size_t which, std::size_t count) {
        thread_local std::vector<float> buffers[4];
        if (buffers[which].size() < count) buffers[which].resize(count);
        return buffers[which].data();
    }

    Panels queries_, out_, gates_, down_;
    NormWeights first_, second_;
    LayerShape shape_;
    Isa isa_;
};

}  // namespace cpu_kernels
