// What a decoder-only transformer consists of. Families are described by what their layers have (norms, biases,
// windows, rotations), not by code.
#pragma once

#include <cstddef>
#include <string>
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
    std::size_t heads = 0, groups = 0, head_size = 0;
    float epsilon = 1e-6f, scale = 1.0f, attention_softcap = 0.0f, logit_softcap = 0.0f, embedding_scale = 1.0f;
    bool gelu = false;
    std::vector<Frequencies> rotations;
};

// Sizes that fit each other.
inline void check(const Settings& s, const std::vector<Layer>& layers, const SharedMatrix& embedding,
                  const SharedMatrix& projection, const Numbers& final_norm) {
    expect(embedding != nullptr && projection != nullptr, "an embedding and a projection");
    const std::size_t hidden = embedding->inputs;
    expect(projection->inputs == hidden && final_norm.size() == hidden, "a projection and a norm of hidden states");
    expect(s.heads > 0 && s.groups > 0 && s.heads % s.groups == 0, "heads in equal groups");
    expect(s.head_size > 0 && s.head_size % 16 == 0, "a head size that is a multiple of 16, got " +
                                                         std::to_string(s.head_size));
    expect(!layers.empty(), "layers");
    for (const Frequencies& each : s.rotations)
        expect(2 * each.frequencies.size() <= s.head_size, "at most half as many frequencies as a head has numbers");
    for (const Layer& layer : layers) {
        for (const SharedMatrix* each : {&layer.query, &layer.key, &layer.value, &layer.output, &layer.gate, &layer.up,
                                         &layer.down})
            expect(*each != nullptr, "all matrices of a layer");
        const auto shape = [](const SharedMatrix& matrix, std::size_t outputs, std::size_t inputs) {
            expect(matrix->outputs == outputs && matrix->inputs == inputs,
                   "a matrix of " + std::to_string(outputs) + " x " + std::to_string(inputs) + " weights, got " +
                       std::to_string(matrix->outputs) + " x " + std::to_string(matrix->inputs));
        };
        const std::size_t attended = s.heads * s.head_size, inner = layer.gate->outputs;
        shape(layer.query, attended, hidden);
        shape(layer.key, s.groups * s.head_size, hidden);
        shape(layer.value, s.groups * s.head_size, hidden);
        shape(layer.output, hidden, attended);
        shape(layer.gate, inner, hidden);
        shape(layer.up, inner, hidden);
        shape(layer.down, hidden, inner);
        expect(inner % 16 == 0, "a hidden layer whose size is a multiple of 16, got " + std::to_string(inner));
        for (const Numbers* norm : {&layer.input_norm, &layer.mlp_norm})
            expect(norm->size() == hidden, "norms of hidden states");
        for (const Numbers* norm : {&layer.attention_output_norm, &layer.mlp_output_norm})
            expect(norm->empty() || norm->size() == hidden, "norms of hidden states");
        for (const Numbers* norm : {&layer.query_norm, &layer.key_norm})
            expect(norm->empty() || norm->size() == s.head_size, "norms of heads");
        expect(layer.rotation >= -1 && layer.rotation < static_cast<int>(s.rotations.size()), "a known rotation");
    }
}

}  // namespace engine
