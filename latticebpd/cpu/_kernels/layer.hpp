// A decoder layer of Llama's kind, but for its attention: what is done to every token by itself.
//
//     before:  q, k, v = W (rms(x) n1), q and k turned by their token's position
//     after:   x' = x + O a,  x' + D (silu(G h) * (U h)) with h = rms(x') n2
//
// Beside the products a layer has little to compute, but many small things; one call does them all.  A token's numbers are the same
// bits whatever other tokens there are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "lanes.hpp"
#include "linear.hpp"
#include "pool.hpp"

namespace latticebpd {

// sums = x + y, which may take the place of x; [rows, size] all.
struct Added {
    const float *x, *y;
    float* sums;
    std::size_t size;

    [[gnu::always_inline]] void row(std::size_t number) const {
        for (std::size_t i = number * size; i < (number + 1) * size; i += kLanes)
            *reinterpret_cast<Lanes*>(sums + i) = *reinterpret_cast<const Lanes*>(x + i) + *reinterpret_cast<const Lanes*>(y + i);
    }
};

// Root mean square normalisation, [rows, size].
struct Normalised {
    const float *x, *weights;
    float* to;
    std::size_t size;
    float epsilon;

    [[gnu::always_inline]] void row(std::size_t number) const {
        const float* from = x + number * size;
        Lanes squares = {};
        for (std::size_t i = 0; i < size; i += kLanes) {
            const Lanes numbers = *reinterpret_cast<const Lanes*>(from + i);
            squares += numbers * numbers;
        }
        float total = 0.0f;
        for (std::size_t lane = 0; lane < kLanes; ++lane) total += squares[lane];
        const float scale = 1.0f / std::sqrt(total / static_cast<float>(size) + epsilon);
        for (std::size_t i = 0; i < size; i += kLanes)
            *reinterpret_cast<Lanes*>(to + number * size + i) =
                *reinterpret_cast<const Lanes*>(from + i) * scale * *reinterpret_cast<const Lanes*>(weights + i);
    }
};

// Rotary positions, in place: the first `heads` of a row's heads, [rows, all, size]; cosines and sines: [turns, size], row by row and
// again from the first.
struct Turned {
    float* numbers;
    const float *cosines, *sines;
    std::size_t heads, all, size, turns;

    [[gnu::always_inline]] void row(std::size_t number) const {
        const float *cosine = cosines + number % turns * size, *sine = sines + number % turns * size;
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
struct Gated {
    const float* both;
    float* to;
    std::size_t size;

    [[gnu::always_inline]] void row(std::size_t number) const {
        for (std::size_t i = 0; i < size; i += kLanes) {
            const Lanes gate = *reinterpret_cast<const Lanes*>(both + 2 * number * size + i);
            const Lanes up = *reinterpret_cast<const Lanes*>(both + (2 * number + 1) * size + i);
            Lanes smaller = gate > 0.0f ? -gate : gate;  // e^-|x| never overflows
            exponential(smaller);
            *reinterpret_cast<Lanes*>(to + number * size + i) = gate * (gate > 0.0f ? Lanes{} + 1.0f : smaller) / (smaller + 1.0f) * up;
        }
    }
};

template <typename Work>
[[gnu::always_inline]] inline void each_row(const Work& work, std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) work.row(row);
}

template <typename Work>
void plain_rows(const Work& work, std::size_t begin, std::size_t end) {
    each_row(work, begin, end);
}

#if defined(__x86_64__)
template <typename Work>
[[gnu::target("avx2,fma")]] void avx2_rows(const Work& work, std::size_t begin, std::size_t end) {
    each_row(work, begin, end);
}
template <typename Work>
[[gnu::target("avx512f,avx2,fma")]] void avx512_rows(const Work& work, std::size_t begin, std::size_t end) {
    each_row(work, begin, end);
}
#endif

template <typename Work>
void rows_of(const Work& work, std::size_t rows, std::size_t threads, std::size_t lanes) {
    constexpr std::size_t kRows = 8;  // to a thread at a time
    auto* some = plain_rows<Work>;
#if defined(__x86_64__)
    if (lanes == 16) some = avx512_rows<Work>;
    if (lanes == 8) some = avx2_rows<Work>;
#else
    static_cast<void>(lanes);
#endif
    Pool::instance().run(threads, (rows + kRows - 1) / kRows, [&](std::size_t i) { some(work, i * kRows, std::min(rows, (i + 1) * kRows)); });
}

struct Shape {
    std::size_t size, heads, groups, head_size, inner;
};

struct Norm {
    std::vector<float> weights;
    float epsilon;
};

class Layer {
  public:
    // matrices: q, k, v, o, gate, up and down, which are copied.
    Layer(const std::vector<Matrix>& matrices, Norm first, Norm second, const Shape& shape, std::size_t kind)
        : queries_({matrices.at(0), matrices.at(1), matrices.at(2)}, shape.size, kind),
          out_({matrices.at(3)}, shape.heads * shape.head_size, kind),
          gates_({matrices.at(4), matrices.at(5)}, shape.size, kind),
          down_({matrices.at(6)}, shape.inner, kind),
          first_(std::move(first)),
          second_(std::move(second)),
          shape_(shape),
          lanes_(kinds().at(kind).lanes) {}

    // x: [rows, size]; cosines, sines: [turns, head size]; to: [rows, heads + 2 groups, head size].
    void before(const float* x, std::size_t rows, const float* cosines, const float* sines, std::size_t turns, float* to,
                std::size_t threads) const {
        float* normal = scratch(0, rows * shape_.size);
        rows_of(Normalised{x, first_.weights.data(), normal, shape_.size, first_.epsilon}, rows, threads, lanes_);
        queries_.multiply(normal, rows, to, threads);
        const std::size_t turned = shape_.heads + shape_.groups;
        rows_of(Turned{to, cosines, sines, turned, turned + shape_.groups, shape_.head_size, turns}, rows, threads, lanes_);
    }

    // x: [rows, size]; attended: [rows, heads, head size]; to: [rows, size].
    void after(const float* x, const float* attended, std::size_t rows, float* to, std::size_t threads) const {
        const std::size_t size = shape_.size, inner = shape_.inner;
        float *product = scratch(0, rows * size), *normal = scratch(1, rows * size), *both = scratch(2, 2 * rows * inner);
        float* gated = scratch(3, rows * inner);
        out_.multiply(attended, rows, product, threads);
        rows_of(Added{x, product, to, size}, rows, threads, lanes_);
        rows_of(Normalised{to, second_.weights.data(), normal, size, second_.epsilon}, rows, threads, lanes_);
        gates_.multiply(normal, rows, both, threads);
        rows_of(Gated{both, gated, inner}, rows, threads, lanes_);
        down_.multiply(gated, rows, product, threads);
        rows_of(Added{to, product, to, size}, rows, threads, lanes_);
    }

  private:
    // Room for so many numbers, the calling thread's own and kept: new memory costs more than what is done in it.
    static float* scratch(std::size_t which, std::size_t count) {
        thread_local std::vector<float> rooms[4];
        if (rooms[which].size() < count) rooms[which].resize(count);
        return rooms[which].data();
    }

    Panels queries_, out_, gates_, down_;
    Norm first_, second_;
    Shape shape_;
    std::size_t lanes_;
};

}  // namespace latticebpd
