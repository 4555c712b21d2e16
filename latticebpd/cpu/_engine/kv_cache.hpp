// Keys and values of one text, and of the columns of its last passes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "expect.hpp"
#include "operations.hpp"
#include "weight_memory.hpp"

namespace engine {

struct CacheShape {
    std::size_t layers, groups, size;  // size: of a head
    bool half;                         // numbers are float16, else float32

    bool operator==(const CacheShape&) const = default;
};

// Keys and values of one text, in float16 if the model's weights are quantized: attention is about as fast as they are
// read. A pass appends its columns after the text, further ones after those; then some are kept, or none.
class Cache {
  public:
    explicit Cache(CacheShape shape) : shape_(shape) {}

    std::size_t length = 0;             // tokens of the text
    std::vector<std::int64_t> pending;  // parents of the columns after it

    const CacheShape& shape() const { return shape_; }

    void reserve(std::size_t positions) {
        if (positions <= capacity_) return;
        const std::size_t wider = (positions + positions / 2 + 15) / 16 * 16;
        const std::size_t own = capacity_ * shape_.size * bytes(), other = wider * shape_.size * bytes();
        for (std::vector<std::uint8_t>* each : {&keys_, &values_}) {
            std::vector<std::uint8_t> next(shape_.layers * shape_.groups * other);
            for (std::size_t i = 0; i < shape_.layers * shape_.groups; ++i)
                std::copy_n(each->data() + i * own, own, next.data() + i * other);
            each->swap(next);
        }
        capacity_ = wider;
    }

    // Append the given columns after the text, ascending, to the text; drop the others.
    void keep(const std::vector<std::size_t>& columns) {
        for (std::size_t i = 0; i < columns.size(); ++i)
            expect(columns[i] < pending.size() && (i == 0 || columns[i] > columns[i - 1]),
                   "ascending columns after the text");
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
    const std::uint8_t* keys(std::size_t layer) const { return keys_.data() + at(layer, 0, 0); }
    const std::uint8_t* values(std::size_t layer) const { return values_.data() + at(layer, 0, 0); }

    // Write a column's keys and values: [2, groups, size].
    void write(const Operations& operations, std::size_t layer, std::size_t position, const float* from) {
        if (!shape_.half) return put(layer, position, from);
        thread_local Scratch<std::uint16_t> scratch;
        const std::size_t count = 2 * shape_.groups * shape_.size;
        std::uint16_t* halves = scratch.of(count);
        operations.to_float16(from, count, halves);
        put(layer, position, halves);
    }

  private:
    std::size_t bytes() const { return shape_.half ? 2 : 4; }
    std::size_t key_number(std::size_t position, std::size_t d) const {
        return (position / 16 * shape_.size + d) * 16 + position % 16;
    }
    // The byte of a number of a group.
    std::size_t at(std::size_t layer, std::size_t group, std::size_t number) const {
        return ((layer * shape_.groups + group) * capacity_ * shape_.size + number) * bytes();
    }
    template <typename Number>
    void put(std::size_t layer, std::size_t position, const Number* keys) {
        const std::size_t size = shape_.size;
        const Number* values = keys + shape_.groups * size;
        for (std::size_t group = 0; group < shape_.groups; ++group, keys += size, values += size) {
            std::uint8_t* to = keys_.data() + at(layer, group, key_number(position, 0));
            for (std::size_t d = 0; d < size; ++d) std::memcpy(to + 16 * d * sizeof(Number), keys + d, sizeof(Number));
            std::memcpy(values_.data() + at(layer, group, position * size), values, size * sizeof(Number));
        }
    }
    void move(std::size_t from, std::size_t to) {
        for (std::size_t i = 0; i < shape_.layers * shape_.groups; ++i) {
            for (std::size_t d = 0; d < shape_.size; ++d)
                std::copy_n(keys_.data() + at(0, i, key_number(from, d)), bytes(),
                            keys_.data() + at(0, i, key_number(to, d)));
            std::copy_n(values_.data() + at(0, i, from * shape_.size), shape_.size * bytes(),
                        values_.data() + at(0, i, to * shape_.size));
        }
    }

    CacheShape shape_;
    std::size_t capacity_ = 0;
    std::vector<std::uint8_t> keys_, values_;
};

}  // namespace engine
