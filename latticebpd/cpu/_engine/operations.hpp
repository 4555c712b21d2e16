// What the engine's loops over numbers read and write, and their table for every instruction set.
//
// operations/loops.inc is compiled once for each instruction set, by a file of its own. No result depends on which:
// sums of integers are exact in any order, sums of float32 numbers have one order, and a product and its addition one
// rounding or two, as the code says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "formats.hpp"

namespace engine {

// Bytes of weights that are prefetched: within the second cache, and far enough that a product of a few rows, which has
// more to do for each weight, does not wait for memory.
constexpr std::size_t kAhead = 32768;

// What formats add to a group's products with weights that are not negative: minus their offset times the sum of q; of
// q6_k, for each half of the group. Computed once, since every panel's products start from them.
enum Correction { kOffset8, kOffset16, kOffset32, kOffset128, kFirstHalf32, kSecondHalf32, kCorrections };

// Inputs as integers q times a scale for each group of 32: |q| <= 127, except the four neighbours that include the
// largest number: theirs are 128 high + low with |q| <= 16256. So the largest number of a group costs the
// others no precision, and the group's products only one instruction more.
struct QuantizedGroup {
    std::int8_t numbers[kGroup], high[4];  // the low parts, and the high ones of four
    std::uint32_t column;                  // of these four numbers
    std::uint32_t mask, shift;             // of the column's nibbles in packed weights, and of their products times 128
    float scale, total;                    // total: scale times the sum of q
    std::int32_t corrections[kCorrections];
};

struct QuantizedRows {
    std::size_t rows, num_groups;
    QuantizedGroup* numbers;  // [num_groups, rows]
};

// A matrix [outputs, inputs] in panels; bias: [panels, width] or null.
struct Panels {
    Type type;
    const std::uint8_t* weights;
    const float* bias;
    std::size_t outputs, inputs;
    bool reads_ahead;  // as `reads_ahead()`
};

struct Rotation {
    const float *cosines, *sines;  // [rows, half]
    std::size_t half;              // rotated are 2 half numbers of a head
};

enum class Activation { kSilu, kGelu };  // gelu: by tanh

// Keys and values of one layer and row of a batch, and the queries that attend to them.
// keys: [num_kv_heads, capacity / 16, size, 16]; values: [num_kv_heads, capacity, size]; float16 if half, else float32.
// text: tokens that all columns may see, but for those before first[column]; ancestors[begin[column] .. begin[column +
// 1] - 1]: the columns, ascending, that a column sees, itself the last of them; their keys follow the text's.
struct Attention {
    const float* queries;
    const std::uint8_t *keys, *values;
    float* output;           // [columns, heads, size]
    std::size_t query_step;  // numbers from a column's queries to the next one's
    std::size_t heads, num_kv_heads, size, capacity, text, columns;
    const std::uint32_t *first, *begin, *ancestors;
    float scale, softcap;
    bool half;
};

struct Operations {
    // x: [rows, inputs]; the groups of rows begin .. end - 1 of `to`.
    void (*quantize)(const float* x, std::size_t begin, std::size_t end, const QuantizedRows& to);
    // The panels begin .. end - 1; y: [rows, step], from the first panel's first output on. x: quantized, or [rows,
    // inputs] for float formats.
    void (*multiply_quantized)(const Panels& w, const QuantizedRows& x, std::size_t begin, std::size_t end, float* y,
                               std::size_t step);
    void (*multiply)(const Panels& w, const float* x, std::size_t rows, std::size_t begin, std::size_t end, float* y,
                     std::size_t step);
    // to = x / sqrt(mean(x^2) + epsilon) * weights; all [size].
    void (*norm)(const float* x, const float* weights, std::size_t size, float epsilon, float* to);
    void (*add)(const float* x, std::size_t size, float* to);
    // One head, in place.
    void (*rotate)(float* x, const Rotation& rotation, std::size_t row);
    // to = activation(gate) * up; without `up`, activation(gate).
    void (*gate)(Activation activation, const float* gate, const float* up, std::size_t size, float* to);
    // The columns begin .. end - 1 of the query heads that share one head of keys and values.
    void (*attend)(const Attention& attention, std::size_t kv_head, std::size_t begin, std::size_t end, float* scratch);
    // cap * tanh(x / cap), in place.
    void (*softcap)(float* x, std::size_t size, float cap);
    // As float16, to the nearest; size: a multiple of 16.
    void (*to_float16)(const float* x, std::size_t size, std::uint16_t* to);
    // The index of the largest number, of equal ones the lowest.
    std::size_t (*argmax)(const float* x, std::size_t size);
    // ln sum e^x; not finite where a number is NaN or +infinity, or all are -infinity.
    float (*log_sum)(const float* x, std::size_t size);
    // The largest of every 32 numbers that are 16 apart: [blocks, 32, 16] -> [blocks, 16].
    void (*maxima)(const float* x, std::size_t blocks, float* to);
    // The products of x and each of the rows, [count]; size: a multiple of 16.
    void (*products)(const float* x, const float* const* rows, std::size_t count, std::size_t size, float* to);
    // Sets the bytes of blocks of 16 with an x + norm * error that is not below `least`; x, errors: [num_blocks, 16].
    void (*mark_candidates)(const float* x, const float* errors, std::size_t num_blocks, float norm, float least,
                            std::uint8_t* to);
    // Rows of a product by 8-bit weights that take hardly longer than one, since reading the weights takes the time.
    std::size_t max_cheap_rows;
    // Rows for which a product by the upper six of eight bits, and exact logits of the candidates, take less time.
    std::size_t approximated;
};

// Outputs of a panel.
inline std::size_t panel_width(Type type) { return is_quantized(type) ? kOutputs : 2 * kOutputs; }
[[gnu::always_inline]] inline std::size_t panel_bytes(Type type, std::size_t inputs) {
    if (!is_quantized(type)) return inputs * 2 * kOutputs * (type == Type::kF32 ? 4 : 2);
    return inputs / kGroup * format_of(type).group_bytes();
}
// Numbers of scratch memory that `attend` takes for so many columns.
inline std::size_t attention_scratch(const Attention& a, std::size_t columns) {
    return columns * (a.heads / a.num_kv_heads) * ((a.text + a.columns + 15) / 16 * 16 + a.size + 16);
}

extern const Operations plain_operations;
#if defined(__x86_64__)
extern const Operations avx2_operations, avx512_operations;
#endif

// Whether the processor reads a stream of weights ahead by itself, faster than by prefetches: AMD's do.
bool reads_ahead();

// Of the processor, widest first.
const std::vector<const Operations*>& operations();
const Operations& operations(std::size_t isa);

}  // namespace engine
