// Keys and values of one text, and of the columns of its last passes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <fst/refuse.hpp>

#include "operations.hpp"
#include "weight_memory.hpp"

namespace engine {

struct CacheShape {
    std::size_t layers, num_kv_heads, size;  // size: of a head
    bool half;                               // numbers are float16, else float32

    bool operator==(const CacheShape&) const = default;
};

// Keys and values of one text, in float16 if the model's weights are quantized: attention is about as fast as they are
// read. A pass appends its columns after the text, further ones after those; then some are kept, or none.
//
// One call at a time: a pass works without Python's lock, and any other call for the same cache meanwhile is refused.
class Cache {
  public:
    explicit Cache(CacheShape shape) : shape_(shape) {}

    std::size_t length = 0;             // tokens of the text
    std::vector<std::int64_t> pending;  // parents of the columns after it
    bool in_use = false;                // by a call; changes under Python's lock only

    const CacheShape& shape() const { return shape_; }

    void reserve(std::size_t positions) {
        if (positions <= capacity_) return;
        const std::size_t wider = (positions + positions / 2 + 15) / 16 * 16;
        std::vector<std::uint8_t> keys = resized(keys_, wider), values = resized(values_, wider);
        keys_ = std::move(keys);
        values_ = std::move(values);
        capacity_ = wider;
    }

    // Append the given columns after the text, ascending, to the text; drop the others.
    void keep(const std::vector<std::size_t>& columns) {
        for (std::size_t i = 0; i < columns.size(); ++i)
            if (columns[i] >= pending.size() || (i > 0 && columns[i] <= columns[i - 1]))
                fst::refuse("expected ascending columns below ", pending.size(), ", got ", columns[i], " at ", i);
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

    // A cache of the text's first tokens, in the memory that these take.
    Cache first(std::size_t tokens) const {
        Cache copied(shape_);
        copied.length = std::min(length, tokens);
        copied.capacity_ = (copied.length + 15) / 16 * 16;
        copied.keys_ = resized(keys_, copied.capacity_);
        copied.values_ = resized(values_, copied.capacity_);
        return copied;
    }

    std::size_t capacity() const { return capacity_; }
    std::size_t memory() const { return keys_.size() + values_.size(); }  // bytes
    const std::uint8_t* keys(std::size_t layer) const { return keys_.data() + at(layer, 0, 0); }
    const std::uint8_t* values(std::size_t layer) const { return values_.data() + at(layer, 0, 0); }

    // Write a column's keys and values: [2, num_kv_heads, size].
    void write(const Operations& operations, std::size_t layer, std::size_t position, const float* from) {
        if (!shape_.half) return put(layer, position, from);
        thread_local Scratch<std::uint16_t> scratch;
        const std::size_t count = 2 * shape_.num_kv_heads * shape_.size;
        std::uint16_t* halves = scratch.of(count);
        operations.to_float16(from, count, halves);
        put(layer, position, halves);
    }

  private:
    std::size_t bytes() const { return shape_.half ? 2 : 4; }
    std::size_t key_number(std::size_t position, std::size_t d) const {
        return (position / 16 * shape_.size + d) * 16 + position % 16;
    }
    // The byte of a number of a head.
    std::size_t at(std::size_t layer, std::size_t head, std::size_t number) const {
        return ((layer * shape_.num_kv_heads + head) * capacity_ * shape_.size + number) * bytes();
    }
    // Keys or values with room for so many positions.
    std::vector<std::uint8_t> resized(const std::vector<std::uint8_t>& from, std::size_t positions) const {
        const std::size_t own = capacity_ * shape_.size * bytes(), other = positions * shape_.size * bytes();
        std::vector<std::uint8_t> to(shape_.layers * shape_.num_kv_heads * other);
        for (std::size_t i = 0; i < shape_.layers * shape_.num_kv_heads; ++i)
            std::copy_n(from.data() + i * own, std::min(own, other), to.data() + i * other);
        return to;
    }
    template <typename Number>
    void put(std::size_t layer, std::size_t position, const Number* keys) {
        const std::size_t size = shape_.size;
        const Number* values = keys + shape_.num_kv_heads * size;
        for (std::size_t head = 0; head < shape_.num_kv_heads; ++head, keys += size, values += size) {
            std::uint8_t* to = keys_.data() + at(layer, head, key_number(position, 0));
            for (std::size_t d = 0; d < size; ++d) std::memcpy(to + 16 * d * sizeof(Number), keys + d, sizeof(Number));
            std::memcpy(values_.data() + at(layer, head, position * size), values, size * sizeof(Number));
        }
    }
    void move(std::size_t from, std::size_t to) {
        for (std::size_t i = 0; i < shape_.layers * shape_.num_kv_heads; ++i) {
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

// The use of different caches for its lifetime, by one call.
class CachesInUse {
  public:
    explicit CachesInUse(std::vector<Cache*> caches) : caches_(std::move(caches)) {
        for (const Cache* cache : caches_)
            if (cache->in_use)
                fst::refuse(
                    "expected a cache for each thread, got one that another thread's call is using; make a "
                    "cache for each, or wait for that call");
        for (Cache* cache : caches_) cache->in_use = true;
    }
    ~CachesInUse() {
        for (Cache* cache : caches_) cache->in_use = false;
    }
    CachesInUse(const CachesInUse&) = delete;
    CachesInUse& operator=(const CachesInUse&) = delete;

  private:
    std::vector<Cache*> caches_;
};

}  // namespace engine
