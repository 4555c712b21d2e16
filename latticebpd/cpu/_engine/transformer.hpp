// A decoder-only transformer: one pass over a few tokens of several texts, each with a cache of its own.
//
// Families are described by what their layers have (norms, biases, windows, rotations), not by code. Results of a token
// are the same bits whatever stands beside it in a pass.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "best_token.hpp"
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

class Transformer;

// Keys and values of one text, in float16 if the model's weights are quantized: attention is about as fast as they are
// read. A pass appends its columns after the text, further ones after those; then some are kept, or none.
class Cache {
  public:
    explicit Cache(const Transformer& model);

    bool fits(const Transformer& model) const;

    std::size_t length = 0;             // tokens of the text
    std::vector<std::int64_t> pending;  // parents of the columns after it

    void reserve(std::size_t positions) {
        if (positions <= capacity_) return;
        const std::size_t wider = (positions + positions / 2 + 15) / 16 * 16;
        const std::size_t own = capacity_ * size_ * bytes(), other = wider * size_ * bytes();
        for (std::vector<std::uint8_t>* each : {&keys_, &values_}) {
            std::vector<std::uint8_t> next(layers_ * groups_ * other);
            for (std::size_t i = 0; i < layers_ * groups_; ++i)
                std::copy_n(each->data() + i * own, own, next.data() + i * other);
            each->swap(next);
        }
        capacity_ = wider;
    }

    // Append the given columns after the text, ascending, to the text; drop the others.
    void keep(const std::vector<std::size_t>& columns) {
        for (std::size_t i = 0; i < columns.size(); ++i)
            if (columns[i] >= pending.size() || (i > 0 && columns[i] <= columns[i - 1]))
                throw std::invalid_argument("expected ascending columns after the text");
        for (std::size_t i = 0; i < columns.size(); ++i)
            if (columns[i] != i) move(length + columns[i], length + i);
        length += columns.size();
        pending.clear();
    }

    // Cut the text to its first tokens.
    void cut(std::size_t tokens) {
        length = std::min(length, tokens);
        pending.clear();
    }

    std::size_t capacity() const { return capacity_; }
    bool half() const { return half_; }
    const std::uint8_t* keys(std::size_t layer) const { return keys_.data() + at(layer, 0, 0); }
    const std::uint8_t* values(std::size_t layer) const { return values_.data() + at(layer, 0, 0); }

    // Write a column's keys and values: [2, groups, size].
    void write(const Operations& operations, std::size_t layer, std::size_t position, const float* from) {
        if (!half_) return put(layer, position, from);
        thread_local Scratch<std::uint16_t> scratch;
        const std::size_t count = 2 * groups_ * size_;
        std::uint16_t* halves = scratch.of(count);
        operations.halve(from, count, halves);
        put(layer, position, halves);
    }

  private:
    std::size_t bytes() const { return half_ ? 2 : 4; }
    std::size_t key_number(std::size_t position, std::size_t d) const {
        return (position / 16 * size_ + d) * 16 + position % 16;
    }
    // The byte of a number of a group.
    std::size_t at(std::size_t layer, std::size_t group, std::size_t number) const {
        return ((layer * groups_ + group) * capacity_ * size_ + number) * bytes();
    }
    template <typename Number>
    void put(std::size_t layer, std::size_t position, const Number* keys) {
        const Number* values = keys + groups_ * size_;
        for (std::size_t group = 0; group < groups_; ++group, keys += size_, values += size_) {
            std::uint8_t* to = keys_.data() + at(layer, group, key_number(position, 0));
            for (std::size_t d = 0; d < size_; ++d) std::memcpy(to + 16 * d * sizeof(Number), keys + d, sizeof(Number));
            std::memcpy(values_.data() + at(layer, group, position * size_), values, size_ * sizeof(Number));
        }
    }
    void move(std::size_t from, std::size_t to) {
        for (std::size_t i = 0; i < layers_ * groups_; ++i) {
            for (std::size_t d = 0; d < size_; ++d)
                std::copy_n(keys_.data() + at(0, i, key_number(from, d)), bytes(),
                            keys_.data() + at(0, i, key_number(to, d)));
            std::copy_n(values_.data() + at(0, i, from * size_), size_ * bytes(),
                        values_.data() + at(0, i, to * size_));
        }
    }

    std::size_t layers_, groups_, size_, capacity_ = 0;
    bool half_;
    std::vector<std::uint8_t> keys_, values_;
};

// A text's columns in a pass, the first of them number `first` after the text. parents: of each column the one before
// it, smaller than itself; -1: the text's last token.
struct Columns {
    Cache* cache;
    const std::int64_t *tokens, *parents;
    std::size_t count, first;
};

class Transformer {
  public:
    Transformer(Settings settings, std::vector<Layer> layers, SharedMatrix embedding, SharedMatrix projection,
                Numbers final_norm, std::size_t isa)
        : settings_(std::move(settings)), layers_(std::move(layers)), embedding_(std::move(embedding)),
          projection_(std::move(projection)), final_norm_(std::move(final_norm)),
          best_(projection_, settings_.logit_softcap), operations_(*operations().at(isa)) {
        check();
        for (const Layer& layer : layers_)
            if (std::find(windows_.begin(), windows_.end(), layer.window) == windows_.end())
                windows_.push_back(layer.window);
    }

    std::size_t hidden() const { return embedding_->inputs; }
    std::size_t vocabulary() const { return projection_->outputs; }
    std::size_t num_layers() const { return layers_.size(); }
    std::size_t together() const { return operations_.together; }
    bool quantized() const { return is_quantized(layers_.front().query->type); }
    const Settings& settings() const { return settings_; }

    // One pass. to: [columns, hidden] final, normalised states.  selected: layers whose states are wanted, too, from 0;
    // states: [columns, selected, hidden], the last layer's normalised.
    void read(const std::vector<Columns>& texts, float* to, const std::vector<std::size_t>& selected, float* states,
              std::size_t threads) const {
        const Workers workers{operations_, contention_.allowed(threads)};
        const auto begin = std::chrono::steady_clock::now();
        ThreadPool::waited() = {};
        read(texts, to, selected, states, workers);
        if (workers.threads > 1)
            contention_.report(ThreadPool::waited(), std::chrono::steady_clock::now() - begin);
    }

    // states: [rows, hidden]; to: [rows, vocabulary].
    void logits(const float* states, std::size_t rows, float* to, std::size_t threads) const {
        const Workers workers{operations_, contention_.allowed(threads)};
        Input(states, rows, hidden(), workers).multiply({projection_.get()}, to, vocabulary());
        if (settings_.logit_softcap != 0.0f)
            workers.each(rows, [&](std::size_t row) {
                operations_.softcap(to + row * vocabulary(), vocabulary(), settings_.logit_softcap);
            });
    }

    // to: [rows] the token of the largest logit, of equal ones the lowest.
    void best(const float* states, std::size_t rows, std::int64_t* to, std::size_t threads) const {
        best_.find(states, rows, to, {operations_, contention_.allowed(threads)});
    }

  private:
    // What the columns of a text see, in layers of one window.
    struct View {
        std::vector<std::uint32_t> first, begin, ancestors;
    };

    static std::array<const SharedMatrix*, 7> matrices(const Layer& layer) {
        return {&layer.query, &layer.key, &layer.value, &layer.output, &layer.gate, &layer.up, &layer.down};
    }

    static void expect(bool fine, const std::string& what) {
        if (!fine) throw std::invalid_argument("expected " + what);
    }

    void check() const {
        const Settings& s = settings_;
        expect(embedding_ != nullptr && projection_ != nullptr, "an embedding and a projection");
        const std::size_t hidden = embedding_->inputs;
        expect(projection_->inputs == hidden && final_norm_.size() == hidden, "a projection and a norm of hidden states");
        expect(s.heads > 0 && s.groups > 0 && s.heads % s.groups == 0, "heads in equal groups");
        expect(s.head_size > 0 && s.head_size % 16 == 0, "a head size that is a multiple of 16, got " +
                                                             std::to_string(s.head_size));
        expect(!layers_.empty(), "layers");
        for (const Frequencies& each : s.rotations)
            expect(2 * each.frequencies.size() <= s.head_size, "at most half as many frequencies as a head has numbers");
        for (const Layer& layer : layers_) {
            for (const SharedMatrix* each : matrices(layer)) expect(*each != nullptr, "all matrices of a layer");
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

    View view(const Columns& text, const std::vector<std::uint32_t>& depths, std::size_t window) const {
        View view;
        const std::size_t length = text.cache->length;
        std::vector<std::uint32_t> path;
        view.begin.push_back(0);
        for (std::size_t column = text.first; column < text.first + text.count; ++column) {
            const std::size_t position = length + depths[column];
            const std::size_t first = window != 0 && position + 1 > window ? position + 1 - window : 0;
            view.first.push_back(static_cast<std::uint32_t>(std::min(first, length)));
            path.clear();
            for (std::int64_t at = static_cast<std::int64_t>(column); at >= 0; at = text.cache->pending[static_cast<std::size_t>(at)])
                if (length + depths[static_cast<std::size_t>(at)] >= first) path.push_back(static_cast<std::uint32_t>(at));
            view.ancestors.insert(view.ancestors.end(), path.rbegin(), path.rend());
            view.begin.push_back(static_cast<std::uint32_t>(view.ancestors.size()));
        }
        return view;
    }

    void read(const std::vector<Columns>& texts, float* to, const std::vector<std::size_t>& selected, float* states,
              const Workers& workers) const {
        std::vector<std::size_t> begins{0};
        std::vector<std::vector<View>> views;
        std::vector<float> positions;
        for (const Columns& text : texts) {
            std::vector<std::int64_t>& pending = text.cache->pending;
            expect(text.first <= pending.size(), "columns after those of the text");
            pending.resize(text.first);
            text.cache->reserve(text.cache->length + text.first + text.count);
            for (std::size_t i = 0; i < text.count; ++i) {
                expect(text.tokens[i] >= 0 && text.tokens[i] < static_cast<std::int64_t>(embedding_->outputs),
                       "tokens below " + std::to_string(embedding_->outputs) + ", got " + std::to_string(text.tokens[i]));
                const std::int64_t parent = text.parents[i];
                expect(parent >= -1 && parent < static_cast<std::int64_t>(pending.size()), "parents before their children");
                pending.push_back(parent);
            }
            std::vector<std::uint32_t> depths;
            for (const std::int64_t parent : pending)
                depths.push_back(parent < 0 ? 0 : depths[static_cast<std::size_t>(parent)] + 1);
            for (std::size_t i = text.first; i < depths.size(); ++i)
                positions.push_back(static_cast<float>(text.cache->length + depths[i]));
            std::vector<View> own;
            for (const std::size_t window : windows_) own.push_back(view(text, depths, window));
            views.push_back(std::move(own));
            begins.push_back(begins.back() + text.count);
        }
        const std::size_t rows = begins.back(), size = hidden(), attended = settings_.heads * settings_.head_size;
        if (rows == 0) return;
        const std::size_t kv = settings_.groups * settings_.head_size, all = attended + 2 * kv;
        std::size_t inner = 0;
        for (const Layer& layer : layers_) inner = std::max(inner, layer.gate->outputs);
        thread_local Scratch<float> memory[6];
        float *x = memory[0].of(rows * size), *normal = memory[1].of(rows * std::max(size, attended));
        float *wide = memory[2].of(rows * std::max(all, 2 * inner)), *narrow = memory[3].of(rows * std::max(size, inner));
        float* attention = memory[4].of(rows * attended);
        const std::vector<Rotation> rotations = rotate(positions, memory[5]);
        std::size_t column = 0;
        for (const Columns& text : texts)
            for (std::size_t i = 0; i < text.count; ++i, ++column) {
                float* own = x + column * size;
                embedding_->row(static_cast<std::size_t>(text.tokens[i]), own);
                if (settings_.embedding_scale != 1.0f)
                    for (std::size_t d = 0; d < size; ++d) own[d] *= settings_.embedding_scale;
            }
        const auto norm = [&](const float* from, const Numbers& weights, float* result) {
            workers.each(rows, [&](std::size_t row) {
                operations_.norm(from + row * size, weights.data(), size, settings_.epsilon, result + row * size);
            });
        };
        const auto add = [&](float* product, const Numbers& weights) {  // to x, perhaps normalised
            workers.each(rows, [&](std::size_t row) {
                float* own = product + row * size;
                if (!weights.empty()) operations_.norm(own, weights.data(), size, settings_.epsilon, own);
                operations_.add(own, size, x + row * size);
            });
        };
        for (std::size_t number = 0; number < layers_.size(); ++number) {
            const Layer& layer = layers_[number];
            norm(x, layer.input_norm, normal);
            Input(normal, rows, size, workers)
                .multiply({layer.query.get(), layer.key.get(), layer.value.get()}, wide, all);
            prepare(layer, number, texts, begins, wide, all, rotations, workers);
            attend(layer, number, texts, begins, views, wide, all, attention, workers);
            Input(attention, rows, attended, workers).multiply({layer.output.get()}, narrow, size);
            add(narrow, layer.attention_output_norm);
            norm(x, layer.mlp_norm, normal);
            const std::size_t width = layer.gate->outputs;
            Input(normal, rows, size, workers).multiply({layer.gate.get(), layer.up.get()}, wide, 2 * width);
            workers.each(rows, [&](std::size_t row) {
                const float* own = wide + row * 2 * width;
                operations_.gate(settings_.gelu ? Activation::kGelu : Activation::kSilu, own, own + width, width,
                                 narrow + row * width);
            });
            Input(narrow, rows, width, workers).multiply({layer.down.get()}, normal, size);
            add(normal, layer.mlp_output_norm);
            for (std::size_t i = 0; i < selected.size(); ++i)
                if (selected[i] == number)
                    for (std::size_t row = 0; row < rows; ++row) {
                        float* state = states + (row * selected.size() + i) * size;
                        if (number + 1 < layers_.size()) std::copy_n(x + row * size, size, state);
                        else operations_.norm(x + row * size, final_norm_.data(), size, settings_.epsilon, state);
                    }
        }
        norm(x, final_norm_, to);
    }

    // Cosines and sines of all positions, for every rotation.
    std::vector<Rotation> rotate(const std::vector<float>& positions, Scratch<float>& memory) const {
        std::size_t count = 0;
        for (const Frequencies& each : settings_.rotations) count += each.frequencies.size();
        float* to = memory.of(2 * count * positions.size());
        std::vector<Rotation> rotations;
        for (const Frequencies& each : settings_.rotations) {
            const std::size_t half = each.frequencies.size(), all = half * positions.size();
            rotations.push_back({to, to + all, half});
            for (std::size_t i = 0; i < all; ++i) {
                const double angle = static_cast<double>(positions[i / half] * each.frequencies[i % half]);
                to[i] = static_cast<float>(std::cos(angle)) * each.factor;
                to[all + i] = static_cast<float>(std::sin(angle)) * each.factor;
            }
            to += 2 * all;
        }
        return rotations;
    }

    // Norms and rotations of queries and keys; keys and values go to the caches.
    void prepare(const Layer& layer, std::size_t number, const std::vector<Columns>& texts,
                 const std::vector<std::size_t>& begins, float* wide, std::size_t step,
                 const std::vector<Rotation>& rotations, const Workers& workers) const {
        const std::size_t size = settings_.head_size, heads = settings_.heads, groups = settings_.groups;
        workers.each(begins.back(), [&](std::size_t row) {
            const std::size_t text = static_cast<std::size_t>(
                std::upper_bound(begins.begin(), begins.end(), row) - begins.begin() - 1);
            for (std::size_t head = 0; head < heads + groups; ++head) {
                float* own = wide + row * step + head * size;
                const Numbers& weights = head < heads ? layer.query_norm : layer.key_norm;
                if (!weights.empty()) operations_.norm(own, weights.data(), size, settings_.epsilon, own);
                if (layer.rotation >= 0)
                    operations_.rotate(own, rotations[static_cast<std::size_t>(layer.rotation)], row);
            }
            Cache& cache = *texts[text].cache;
            cache.write(operations_, number, cache.length + texts[text].first + row - begins[text],
                        wide + row * step + heads * size);
        });
    }

    void attend(const Layer& layer, std::size_t number, const std::vector<Columns>& texts,
                const std::vector<std::size_t>& begins, const std::vector<std::vector<View>>& views, const float* wide,
                std::size_t step, float* to, const Workers& workers) const {
        constexpr std::size_t kColumns = 4;  // of a task
        struct Part {
            std::size_t text, group, begin;
        };
        std::vector<Part> parts;
        std::vector<Attention> attentions;
        const auto kind = static_cast<std::size_t>(std::find(windows_.begin(), windows_.end(), layer.window) -
                                                   windows_.begin());
        for (std::size_t text = 0; text < texts.size(); ++text) {
            const Columns& own = texts[text];
            const View& view = views[text][kind];
            attentions.push_back({wide + begins[text] * step, own.cache->keys(number), own.cache->values(number),
                                  to + begins[text] * settings_.heads * settings_.head_size, step, settings_.heads,
                                  settings_.groups, settings_.head_size, own.cache->capacity(), own.cache->length,
                                  own.first + own.count, view.first.data(), view.begin.data(), view.ancestors.data(),
                                  settings_.scale, settings_.attention_softcap, own.cache->half()});
            for (std::size_t begin = 0; begin < own.count; begin += kColumns)
                for (std::size_t group = 0; group < settings_.groups; ++group) parts.push_back({text, group, begin});
        }
        workers.run(parts.size(), [&](std::size_t i) {
            thread_local Scratch<float> scratch;
            const Attention& own = attentions[parts[i].text];
            const std::size_t begin = parts[i].begin, end = std::min(texts[parts[i].text].count, begin + kColumns);
            operations_.attend(own, parts[i].group, begin, end, scratch.of(attention_scratch(own, end - begin)));
        });
    }

    Settings settings_;
    std::vector<Layer> layers_;
    SharedMatrix embedding_, projection_;
    Numbers final_norm_;
    BestToken best_;
    const Operations& operations_;
    std::vector<std::size_t> windows_;
    mutable Contention contention_;
};

inline Cache::Cache(const Transformer& model)
    : layers_(model.num_layers()), groups_(model.settings().groups), size_(model.settings().head_size),
      half_(model.quantized()) {}

inline bool Cache::fits(const Transformer& model) const {
    const Settings& own = model.settings();
    return layers_ == model.num_layers() && groups_ == own.groups && size_ == own.head_size &&
           half_ == model.quantized();
}

}  // namespace engine
