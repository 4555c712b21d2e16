// Matrices of weights in panels, and their products with the numbers of a pass.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include <fst/refuse.hpp>

#include "operations.hpp"
#include "weight_memory.hpp"
#include "workers.hpp"

namespace engine {

constexpr float kLargestWeight = 127.0f * 65504.0f;  // of q8_0

// A matrix [outputs, inputs], perhaps with a bias.
class Matrix {
  public:
    // A GGUF file's blocks, row by row. order: for each output its row; empty: as they are.
    Matrix(const std::shared_ptr<WeightMemory>& memory, Type type, const std::uint8_t* blocks, std::size_t outputs,
           std::size_t inputs, const std::vector<std::int64_t>& order)
        : Matrix(memory, type, outputs, inputs) {
        const std::size_t bytes = block_of(type).bytes, row_bytes = inputs / block_of(type).inputs * bytes;
        fill([&](std::size_t output, std::uint8_t* panel) {
            const std::size_t number = order.empty() ? output : static_cast<std::size_t>(order[output]);
            const std::uint8_t* row = blocks + row_bytes * number;
            if (is_quantized(type)) {
                for (std::size_t group = 0; group < inputs / kGroup; ++group)
                    put(panel, output % kOutputs, group, read_group(type, row, group));
            } else {
                for (std::size_t i = 0; i < inputs; ++i)
                    std::memcpy(panel + (i * width() + output % width()) * bytes, row + i * bytes, bytes);
            }
        });
    }

    // float32 numbers [outputs, inputs], quantized as q8_0; unchanged, they are blocks of kF32.
    Matrix(const std::shared_ptr<WeightMemory>& memory, const float* numbers, std::size_t outputs, std::size_t inputs)
        : Matrix(memory, Type::kQ80, outputs, inputs) {
        fill([&](std::size_t output, std::uint8_t* panel) {
            for (std::size_t group = 0; group < inputs / kGroup; ++group) {
                const float* from = numbers + output * inputs + group * kGroup;
                float largest = 0.0f;
                for (std::size_t i = 0; i < kGroup; ++i) largest = std::max(largest, std::abs(from[i]));
                if (!(largest < kLargestWeight) || std::any_of(from, from + kGroup, [](float w) { return w != w; }))
                    fst::refuse("expected finite weights below 8 million, which 8 bits can hold");
                Group to{};
                to.half = to_half(largest / 127.0f);
                const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
                for (std::size_t i = 0; i < kGroup; ++i)
                    to.q[i] = static_cast<std::uint8_t>(128 + std::lrint(from[i] * inverse));
                put(panel, output % kOutputs, group, to);
            }
        });
    }

    // The upper six bits of 8-bit weights. errors: [count, 16], by output a bound: products with both matrices differ
    // by at most the error times the norm of the numbers, rounding included.
    std::shared_ptr<const Matrix> upper_bits(std::vector<float>& errors) const {
        constexpr Format kOwn = format_of(Type::kQ80), kOther = format_of(Type::kUpper);
        constexpr int kLower = kOwn.bits - kOther.bits, kStep = 1 << kLower, kMost = kOther.offset - 1;
        const std::shared_ptr<Matrix> rounded(new Matrix(memory_, Type::kUpper, outputs, inputs));
        errors.resize(count() * kOutputs);
        rounded->fill([&](std::size_t output, std::uint8_t* panel) {
            const std::uint8_t* own = panels_ + output / kOutputs * panel_bytes(type, inputs);
            double lower = 0.0, total = 0.0;
            for (std::size_t group = 0; group < inputs / kGroup; ++group, own += kOwn.group_bytes()) {
                const double scale = read_scale(kOwn, own + kOwn.weight_bytes(), output % kOutputs, 0);
                int lower_squares = 0, squares = 0;
                Group to{};
                for (std::size_t i = 0; i < kGroup; ++i) {
                    const WeightIndex index(output % kOutputs, i);
                    const int q = read_q(kOwn, own, index) - kOwn.offset;
                    const int upper = std::min(kMost, (q + kStep / 2) >> kLower);
                    to.q[i] = static_cast<std::uint8_t>(upper + kOther.offset);
                    lower_squares += (q - kStep * upper) * (q - kStep * upper);
                    squares += q * q;
                }
                to.half = to_half(static_cast<float>(kStep * scale));
                rounded->put(panel, output % kOutputs, group, to);
                lower += scale * scale * lower_squares;
                total += scale * scale * squares;
            }
            // Sums over so many groups round by less than this part of the product of the norms.
            const std::size_t sums = inputs / kGroup + 8;
            const double rounding = static_cast<double>(sums) * 0x1p-22;
            errors[output] = static_cast<float>(std::sqrt(lower) + rounding * std::sqrt(total));
        });
        return rounded;
    }

    // Before the first product, which other threads may compute.
    void set_bias(std::vector<float> bias) {
        if (bias.size() != outputs) fst::refuse("expected a bias of ", outputs, " numbers, got ", bias.size());
        bias.resize(count() * width());
        bias_ = std::move(bias);
    }

    Panels panels() const {
        return {type, panels_, bias_.empty() ? nullptr : bias_.data(), outputs, inputs, reads_ahead()};
    }
    std::size_t width() const { return panel_width(type); }
    std::size_t count() const { return (outputs + width() - 1) / width(); }
    std::size_t bytes() const { return count() * panel_bytes(type, inputs); }

    // The weights of one output, in float32.
    void row(std::size_t output, float* to) const {
        const std::uint8_t* panel = panels_ + output / width() * panel_bytes(type, inputs);
        if (!is_quantized(type)) {
            for (std::size_t i = 0; i < inputs; ++i)
                to[i] = read_number(type, panel + (i * width() + output % width()) * block_of(type).bytes);
            return;
        }
        const Format format = format_of(type);
        for (std::size_t i = 0; i < inputs; ++i) {
            const WeightIndex index(output % kOutputs, i % kGroup);
            const std::uint8_t* group = panel + i / kGroup * format.group_bytes();
            const std::uint8_t* scales = group + format.weight_bytes();
            to[i] = read_weight(format, scales, output % kOutputs, i % kGroup, read_q(format, group, index));
        }
    }

    const Type type;
    const std::size_t outputs, inputs;

  private:
    Matrix(const std::shared_ptr<WeightMemory>& memory, Type own, std::size_t rows, std::size_t columns)
        : type(own), outputs(rows), inputs(columns), memory_(memory) {
        if (outputs == 0 || inputs == 0)
            fst::refuse("expected a matrix with outputs and inputs, got ", outputs, " x ", inputs);
        const std::size_t block = block_of(type).inputs;
        if (inputs % block != 0) fst::refuse("expected rows of a multiple of ", block, " weights, got ", inputs);
        panels_ = memory_->take(bytes());
    }

    template <typename Write>
    void fill(const Write& write) {
        for (std::size_t output = 0; output < outputs; ++output)
            write(output, panels_ + output / width() * panel_bytes(type, inputs));
    }

    void put(std::uint8_t* panel, std::size_t output, std::size_t group, const Group& from) const {
        const Format format = format_of(type);
        std::uint8_t* const own = panel + group * format.group_bytes();
        for (std::size_t i = 0; i < kGroup; ++i) write_q(format, own, WeightIndex(output, i), from.q[i]);
        write_scales(format, own + format.weight_bytes(), output, from);
    }

    std::shared_ptr<WeightMemory> memory_;
    std::uint8_t* panels_;
    std::vector<float> bias_;
};

using SharedMatrix = std::shared_ptr<const Matrix>;

// The inputs of products, [rows, inputs]; quantized where a matrix is, once for all matrices.
class Input {
  public:
    // x: valid while this is.  Memory is the calling thread's: one input at a time.
    Input(const float* x, std::size_t rows, std::size_t inputs, const Workers& workers)
        : x_(x), rows_(rows), inputs_(inputs), workers_(workers) {}

    // y: [rows, step]; the outputs of the matrices one after another.
    void multiply(std::initializer_list<const Matrix*> matrices, float* y, std::size_t step) {
        struct Part {
            const Matrix* matrix;
            std::size_t begin, end;
            float* y;
        };
        std::vector<Part> parts;
        std::size_t all = 0;
        for (const Matrix* matrix : matrices) all += matrix->count();
        const std::size_t chunk = std::max<std::size_t>(1, all / (workers_.threads * 4));
        for (const Matrix* matrix : matrices) {
            if (is_quantized(matrix->type)) quantize();
            for (std::size_t panel = 0; panel < matrix->count(); panel += chunk)
                parts.push_back({matrix, panel, std::min(matrix->count(), panel + chunk), y + panel * matrix->width()});
            y += matrix->outputs;
        }
        workers_.run(parts.size(), [&](std::size_t i) {
            const Part& part = parts[i];
            panels(*part.matrix, part.begin, part.end, part.y, step);
        });
    }

    // The panels begin .. end - 1 of one matrix; y: from their first output on.
    void panels(const Matrix& matrix, std::size_t begin, std::size_t end, float* y, std::size_t step) const {
        if (is_quantized(matrix.type))
            workers_.operations.multiply_quantized(matrix.panels(), quantized_, begin, end, y, step);
        else workers_.operations.multiply(matrix.panels(), x_, rows_, begin, end, y, step);
    }

    void quantize() {
        if (quantized_.numbers != nullptr) return;
        thread_local Scratch<QuantizedGroup> memory;
        const std::size_t num_groups = inputs_ / kGroup;
        quantized_ = {rows_, num_groups, memory.of(num_groups * rows_)};
        workers_.each(rows_, [&](std::size_t row) { workers_.operations.quantize(x_, row, row + 1, quantized_); });
    }

    const Workers& workers() const { return workers_; }

  private:
    const float* x_;
    std::size_t rows_, inputs_;
    const Workers& workers_;
    QuantizedRows quantized_{};
};

}  // namespace engine
