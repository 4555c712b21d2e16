// A decoder-only transformer: one pass over a few tokens of several texts, each with a cache of its own.
//
// Results are batch-invariant, bit for bit: those of a token do not depend on the other tokens of the pass.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "best_token.hpp"
#include "columns.hpp"
#include "some_logits.hpp"

namespace engine {

class Transformer {
  public:
    Transformer(Settings settings, std::vector<Layer> layers, SharedMatrix embedding, SharedMatrix projection,
                Numbers final_norm, std::size_t isa)
        : settings_(std::move(settings)), layers_(std::move(layers)), embedding_(std::move(embedding)),
          projection_(std::move(projection)), final_norm_(std::move(final_norm)),
          best_(projection_, settings_.logit_softcap), operations_(operations(isa)) {
        check(settings_, layers_, embedding_, projection_, final_norm_);
        for (const Layer& layer : layers_)
            if (std::find(windows_.begin(), windows_.end(), layer.window) == windows_.end())
                windows_.push_back(layer.window);
    }

    std::size_t hidden() const { return embedding_->inputs; }
    std::size_t vocabulary() const { return projection_->outputs; }
    std::size_t num_layers() const { return layers_.size(); }
    std::size_t max_cheap_rows() const { return operations_.max_cheap_rows; }
    CacheShape cache_shape() const {
        return {layers_.size(), settings_.num_kv_heads, settings_.head_size, is_quantized(layers_.front().query->type)};
    }

    // One pass. to: [columns, hidden] final, normalised states.  selected: layers whose states are wanted, too, from 0;
    // states: [columns, selected, hidden], the last layer's normalised.
    void read(const std::vector<Columns>& texts, float* to, const std::vector<std::size_t>& selected, float* states,
              std::size_t threads) const {
        const Workers workers = available(threads);
        const auto begin = std::chrono::steady_clock::now();
        fst::ThreadPool::waited() = {};
        try {
            read(texts, to, selected, states, workers);
        } catch (...) {  // columns without keys and values
            for (const Columns& text : texts)
                if (text.cache->pending.size() > text.first) text.cache->pending.resize(text.first);
            throw;
        }
        if (workers.threads > 1)
            contention_.report(fst::ThreadPool::waited(), std::chrono::steady_clock::now() - begin);
    }

    // states: [rows, hidden]; to: [rows, vocabulary].
    void logits(const float* states, std::size_t rows, float* to, std::size_t threads) const {
        const Workers workers = available(threads);
        Input(states, rows, hidden(), workers).multiply({projection_.get()}, to, vocabulary());
        if (settings_.logit_softcap != 0.0f)
            workers.each(rows, [&](std::size_t row) {
                operations_.softcap(to + row * vocabulary(), vocabulary(), settings_.logit_softcap);
            });
    }

    // Of each state, [counts.size(), hidden], the logits of some tokens, see some_logits.hpp.
    void logits_of(const float* states, const std::vector<std::size_t>& counts, const std::int64_t* tokens, float* to,
                   std::size_t threads) const {
        some_logits(*projection_, settings_.logit_softcap, states, counts, tokens, to, available(threads));
    }

    // to: [rows] the token of the largest logit, of equal ones the lowest.
    void best(const float* states, std::size_t rows, std::int64_t* to, std::size_t threads) const {
        best_.find(states, rows, to, available(threads));
    }

  private:
    Workers available(std::size_t threads) const {
        Workers workers{operations_, threads};
        workers.threads = contention_.allowed(threads);
        return workers;
    }

    void read(const std::vector<Columns>& texts, float* to, const std::vector<std::size_t>& selected, float* states,
              const Workers& workers) const {
        std::vector<std::size_t> begins{0};
        std::vector<std::vector<MaskView>> masks;
        std::vector<float> positions;
        for (const Columns& text : texts) {
            text.append(embedding_->outputs);
            const std::vector<std::size_t> all = text.positions();
            positions.insert(positions.end(), all.begin() + static_cast<std::ptrdiff_t>(text.first), all.end());
            std::vector<MaskView> own;
            for (const std::size_t window : windows_) own.emplace_back(text, all, window);
            masks.push_back(std::move(own));
            begins.push_back(begins.back() + text.count);
        }
        const std::size_t rows = begins.back(), size = hidden(), attended = settings_.heads * settings_.head_size;
        if (rows == 0) return;
        const std::size_t kv = settings_.num_kv_heads * settings_.head_size, all = attended + 2 * kv;
        std::size_t inner = 0;
        for (const Layer& layer : layers_) inner = std::max(inner, layer.gate->outputs);
        thread_local Scratch<float> memory[6];
        float *x = memory[0].of(rows * size), *normal = memory[1].of(rows * std::max(size, attended));
        float *wide = memory[2].of(rows * std::max(all, 2 * inner)), *attention = memory[4].of(rows * attended);
        float* narrow = memory[3].of(rows * std::max(size, inner));
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
            attend(layer, number, texts, begins, masks, wide, all, attention, workers);
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
        const std::size_t size = settings_.head_size, heads = settings_.heads, num_kv_heads = settings_.num_kv_heads;
        workers.each(begins.back(), [&](std::size_t row) {
            const std::size_t text =
                static_cast<std::size_t>(std::upper_bound(begins.begin(), begins.end(), row) - begins.begin() - 1);
            for (std::size_t head = 0; head < heads + num_kv_heads; ++head) {
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
                const std::vector<std::size_t>& begins, const std::vector<std::vector<MaskView>>& masks,
                const float* wide, std::size_t step, float* to, const Workers& workers) const {
        constexpr std::size_t kColumns = 4;  // of a task
        struct Part {
            std::size_t text, kv_head, begin;
        };
        std::vector<Part> parts;
        std::vector<Attention> attentions;
        const auto kind =
            static_cast<std::size_t>(std::find(windows_.begin(), windows_.end(), layer.window) - windows_.begin());
        for (std::size_t text = 0; text < texts.size(); ++text) {
            const Columns& own = texts[text];
            const MaskView& mask = masks[text][kind];
            attentions.push_back({wide + begins[text] * step, own.cache->keys(number), own.cache->values(number),
                                  to + begins[text] * settings_.heads * settings_.head_size, step, settings_.heads,
                                  settings_.num_kv_heads, settings_.head_size, own.cache->capacity(), own.cache->length,
                                  own.first + own.count, mask.first.data(), mask.begin.data(), mask.ancestors.data(),
                                  settings_.scale, settings_.attention_softcap, own.cache->shape().half});
            for (std::size_t begin = 0; begin < own.count; begin += kColumns)
                for (std::size_t kv_head = 0; kv_head < settings_.num_kv_heads; ++kv_head)
                    parts.push_back({text, kv_head, begin});
        }
        workers.run(parts.size(), [&](std::size_t i) {
            thread_local Scratch<float> scratch;
            const Attention& own = attentions[parts[i].text];
            const std::size_t begin = parts[i].begin, end = std::min(texts[parts[i].text].count, begin + kColumns);
            operations_.attend(own, parts[i].kv_head, begin, end, scratch.of(attention_scratch(own, end - begin)));
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

}  // namespace engine
