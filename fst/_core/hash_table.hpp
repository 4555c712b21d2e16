// A hash table from integers to indices, by open addressing: keys are stored next to their values, and memory is kept.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace fst_core {

// Key: an unsigned integer. Values are 0 or more; nothing is ever removed but all at once.
template <typename Key>
class HashTable {
  public:
    static constexpr std::int32_t kNone = -1;

    // Empties the table. buckets: a power of two, of which at most half are used before the table grows.
    void clear(std::size_t buckets) {
        entries_.assign(buckets, Entry{0, kNone});
        shift_ = 64 - std::countr_zero(buckets);
        size_ = 0;
    }

    // The value of a key, or kNone.
    std::int32_t find(Key key) const { return entries_[bucket(key)].value; }

    // The value of a key, and whether it is new: then it is `value`.
    std::pair<std::int32_t, bool> insert(Key key, std::int32_t value) {
        Entry& entry = entries_[bucket(key)];
        if (entry.value != kNone) return {entry.value, false};
        entry = {key, value};
        if (2 * ++size_ > entries_.size()) grow();
        return {value, true};
    }

    // Room for so many keys more: inserting them allocates nothing.
    void reserve(std::size_t keys) {
        while (2 * (size_ + keys) > entries_.size()) grow();
    }

  private:
    struct Entry {
        Key key;
        std::int32_t value;
    };

    // Of the key, or the free one where it belongs.
    std::size_t bucket(Key key) const {
        const std::size_t mask = entries_.size() - 1;
        std::size_t at = (key * 0x9E3779B97F4A7C15u) >> shift_;
        while (entries_[at].value != kNone && entries_[at].key != key) at = (at + 1) & mask;
        return at;
    }

    void grow() {
        std::vector<Entry> old(4 * entries_.size(), Entry{0, kNone});
        old.swap(entries_);
        shift_ -= 2;
        for (const Entry& entry : old)
            if (entry.value != kNone) entries_[bucket(entry.key)] = entry;
    }

    std::vector<Entry> entries_;
    std::size_t size_ = 0;
    int shift_ = 64;
};

}  // namespace fst_core
