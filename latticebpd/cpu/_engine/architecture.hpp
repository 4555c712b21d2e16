// What a decoder-only transformer consists of. Families are described by what their layers have (norms, biases,
// windows, rotations), not by code.
#pragma once

#include <cstddef>
#include <vector>

#include "matrix.hpp"

namespace engine {

using Numbers = std::vector<float>;

// One layer. Norms are weights, empty where there is none.
struct Layer {
    Numbers input_norm, attention_output_norm, mlp_norm, mlp_output_norm, query_norm, key_norm;
    SharedMatrix query, key, value, output, gate, up, down;
    std::size_t window = 0;  // positions that a token sees, its own included; 0: all
    int rotation = 0;        // index; -1: none
};

// Angles of a rotary embedding: position times frequency; cosines and sines are multiplied by `factor`.
struct Frequencies {
    Numbers frequencies;
    float factor = 1.0f;
};

struct Settings {
    std::size_t heads = 0, num_kv_heads = 0, head_size = 0;
    float epsilon = 1e-6f, scale = 1.0f, attention_softcap = 0.0f, logit_softcap = 0.0f, embedding_scale = 1.0f;
    bool gelu = false;
    std::vector<Frequencies> rotations;
};

// Sizes that fit each other.
inline void check(const Settings& s, const std::vector<Layer>& layers, const SharedMatrix& embedding,
                  const SharedMatrix& projection, const Numbers& final_norm) {
    using fst::refuse;
    constexpr std::size_t kMost = std::size_t{1} << 31;  // numbers of all heads
    if (embedding == nullptr || projection == nullptr) refuse("expected an embedding and a projection");
    const std::size_t hidden = embedding->inputs;
    if (projection->inputs != hidden || final_norm.size() != hidden)
        refuse("expected a projection and a norm of hidden states of ", hidden, " numbers, got ", projection->inputs,
               " and ", final_norm.size());
    if (s.heads == 0 || s.num_kv_heads == 0 || s.heads % s.num_kv_heads != 0)
        refuse("expected heads that share keys and values in equal numbers, got ", s.heads, " heads and ",
               s.num_kv_heads, " of keys and values");
    if (s.head_size == 0 || s.head_size % 16 != 0)
        refuse("expected a head size that is a multiple of 16, got ", s.head_size);
    if (s.head_size > kMost || s.heads > kMost / s.head_size)
        refuse("expected heads of at most 2^31 numbers in all, got ", s.heads, " of ", s.head_size);
    if (layers.empty()) refuse("expected layers, got none");
    for (const Frequencies& each : s.rotations)
        if (each.frequencies.size() > s.head_size / 2)
            refuse("expected at most ", s.head_size / 2, " frequencies, half as many as a head has numbers, got ",
                   each.frequencies.size());
    for (const Layer& layer : layers) {
        for (const SharedMatrix* each :
             {&layer.query, &layer.key, &layer.value, &layer.output, &layer.gate, &layer.up, &layer.down})
            if (*each == nullptr) refuse("expected all matrices of a layer");
        const auto shape = [](const SharedMatrix& matrix, std::size_t outputs, std::size_t inputs) {
            if (matrix->outputs != outputs || matrix->inputs != inputs)
                refuse("expected a matrix of ", outputs, " x ", inputs, " weights, got ", matrix->outputs, " x ",
                       matrix->inputs);
        };
        const std::size_t attended = s.heads * s.head_size, inner = layer.gate->outputs;
        shape(layer.query, attended, hidden);
        shape(layer.key, s.num_kv_heads * s.head_size, hidden);
        shape(layer.value, s.num_kv_heads * s.head_size, hidden);
        shape(layer.output, hidden, attended);
        shape(layer.gate, inner, hidden);
        shape(layer.up, inner, hidden);
        shape(layer.down, hidden, inner);
        if (inner % 16 != 0) refuse("expected a hidden layer whose size is a multiple of 16, got ", inner);
        const auto norm = [](const Numbers& weights, std::size_t size, bool required) {
            if (weights.size() != size && (required || !weights.empty()))
                refuse("expected a norm of ", size, " numbers, got ", weights.size());
        };
        norm(layer.input_norm, hidden, true);
        norm(layer.mlp_norm, hidden, true);
        norm(layer.attention_output_norm, hidden, false);
        norm(layer.mlp_output_norm, hidden, false);
        norm(layer.query_norm, s.head_size, false);
        norm(layer.key_norm, s.head_size, false);
        if (layer.rotation < -1 || layer.rotation >= static_cast<int>(s.rotations.size()))
            refuse("expected a rotation below ", s.rotations.size(), ", or -1 for none, got ", layer.rotation);
    }
}

}  // namespace engine
