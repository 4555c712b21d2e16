// Builds the backoff automaton of an n-gram model, order by order, in place and in little memory.
//
// An n-gram is 16 bytes: the row of its context one order below, its last label, its cost and the cost of its backoff
// weight. Sorted by context and label they are a trie, and the trie is all but the automaton: finish() replaces the
// context (still known from the grouping) by the next state. Nothing else is kept but 4 bytes for each n-gram that
// could be a context and 8 for each state, so building takes less memory than the automaton's own file.
//
// The states and arcs are defined in fst/automaton.py.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "model.hpp"

namespace fst_core {

// A growing array of plain records. Unlike std::vector it grows by realloc, which moves pages instead of bytes.
template <typename T>
class Records {
    static_assert(std::is_trivially_copyable_v<T>);

  public:
    Records() = default;
    Records(Records&& other) noexcept : data_(other.data_), size_(other.size_), capacity_(other.capacity_) {
        other.data_ = nullptr;
        other.size_ = other.capacity_ = 0;
    }
    Records(const Records&) = delete;
    Records& operator=(const Records&) = delete;
    Records& operator=(Records&&) = delete;
    void swap(Records& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(capacity_, other.capacity_);
    }
    ~Records() { std::free(data_); }

    void push_back(const T& value) {
        if (size_ == capacity_) grow();
        data_[size_++] = value;
    }
    void clear() { size_ = 0; }
    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    T& operator[](std::size_t i) { return data_[i]; }
    const T& operator[](std::size_t i) const { return data_[i]; }
    T* begin() { return data_; }
    T* end() { return data_ + size_; }
    const T* begin() const { return data_; }
    const T* end() const { return data_ + size_; }
    T& back() { return data_[size_ - 1]; }

  private:
    void grow() {
        const std::size_t capacity = capacity_ + capacity_ / 4 + 1024;
        T* data = static_cast<T*>(std::realloc(static_cast<void*>(data_), capacity * sizeof(T)));
        if (data == nullptr) throw std::bad_alloc();
        data_ = data;
        capacity_ = capacity;
    }

    T* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t capacity_ = 0;
};

struct DuplicateNgram : std::invalid_argument {
    explicit DuplicateNgram(std::vector<std::int32_t> ngram);
    std::vector<std::int32_t> labels;
};

class AutomatonBuilder {
  public:
    // Labels that are no arcs: <s>, which is only ever a context, and </s>, which becomes a final weight. They sort
    // first.
    static constexpr std::int32_t kStart = -1;
    static constexpr std::int32_t kEnd = 0;
    static constexpr std::uint32_t kNone = UINT32_MAX;
    // The cost that stands for infinity, so that no infinity enters a sum.
    static constexpr double kZeroCost = Model::kMaxCost;

    // Adds an n-gram of the order being built: `context` is the row of its context (0 for unigrams), the costs are
    // natural. Any order of calls will do. Throws std::invalid_argument for NaN, a negative cost or a backoff below
    // -kZeroCost; larger costs are cut to kZeroCost.
    void add(std::uint32_t context, std::int32_t label, double cost, double backoff_cost);

    // Closes the order being built. Throws DuplicateNgram where an n-gram occurs twice.
    void end_order();

    std::size_t num_orders() const { return orders_.size(); }

    // How many n-grams of the order being built were added.
    std::size_t num_added() const { return building_.size(); }

    // The row of an n-gram of a closed order, kNone where it is missing.
    std::uint32_t find(const std::int32_t* labels, std::size_t order) const;

    // Adds the n-grams that longer ones end in but the model lacks, at the probability they have by backing off,
    // numbers the states and links them; the last order closed is the highest. Throws std::invalid_argument where a
    // token is missing from the unigrams.
    void finish();

    // After finish().
    std::uint64_t num_states() const { return row_.size(); }
    std::uint64_t num_arcs() const { return num_arcs_; }
    std::uint32_t start() const { return start_; }
    std::vector<std::uint64_t> num_ngrams() const;

    // Passes the states, padding to a multiple of 16 bytes and the arcs to `sink`, piece by piece, as a const file has
    // them.
    void write(const std::function<void(const char*, std::size_t)>& sink) const;

  private:
    struct Ngram {
        std::uint32_t context;  // row of the context, one order below; after finish() the next state
        std::int32_t label;
        float cost;
        float backoff;  // cost of the backoff weight

        bool operator<(const Ngram& other) const {
            return context != other.context ? context < other.context : label < other.label;
        }
    };
    struct Order {
        Records<Ngram> ngrams;
        // ngrams [first[r], first[r + 1]) of the next order continue row r; empty for the highest order.
        std::vector<std::uint32_t> first;
    };
    struct Range {
        const Ngram* begin;
        const Ngram* end;
    };

    // The n-gram of a context's row of a closed order that ends in `label`; null where there is none.
    const Ngram* find(std::size_t lower, std::uint32_t context, std::int32_t label) const;

    Range continuations(std::uint32_t state) const;
    std::size_t context_length(std::uint32_t state) const;
    bool link();
    void restore_contexts();
    void close_suffixes();
    void index_continuations(std::size_t lower);
    std::vector<std::int32_t> labels_of(std::size_t order, std::uint32_t row) const;
    void count_arcs();

    std::vector<Order> orders_;
    Records<Ngram> building_;
    bool sorted_ = true;

    std::vector<std::uint32_t> first_state_;  // number of the first state with a context of the length of the index
    Records<std::uint32_t> row_;              // of each state's context among the n-grams of its length
    Records<std::uint32_t> failure_;          // of each state, the state to back off to
    std::uint64_t num_arcs_ = 0;
    std::uint32_t start_ = 0;
};

}  // namespace fst_core
