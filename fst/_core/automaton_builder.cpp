#include "automaton_builder.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace fst_core {

namespace {

std::string spelled(const std::vector<std::int32_t>& labels) {
    std::string text;
    for (const std::int32_t label : labels) text += " " + std::to_string(label);
    return text;
}

}  // namespace

DuplicateNgram::DuplicateNgram(std::vector<std::int32_t> ngram)
    : std::invalid_argument("expected every n-gram once, but that of labels" + spelled(ngram) + " occurs twice"),
      labels(std::move(ngram)) {}

void AutomatonBuilder::add(std::uint32_t context, std::int32_t label, double cost, double backoff_cost) {
    // Negated, so that NaN fails too.
    if (!(cost >= 0)) refuse("expected a log-probability of at most 0, got ", -cost);
    if (!(backoff_cost >= -kZeroCost))
        refuse("expected a backoff weight (natural log) of at most ", kZeroCost, ", got ", -backoff_cost);
    if (building_.size() == kNone) refuse("expected fewer than 2^32 - 1 n-grams of one order");
    const Ngram ngram{context, label, static_cast<float>(std::min(cost, kZeroCost)),
                      static_cast<float>(std::min(backoff_cost, kZeroCost))};
    sorted_ = sorted_ && (building_.empty() || building_.back() < ngram);
    building_.push_back(ngram);
}

void AutomatonBuilder::end_order() {
    if (!sorted_) std::sort(building_.begin(), building_.end());
    orders_.push_back(Order{std::move(building_), {}});
    if (orders_.size() > 1) index_continuations(orders_.size() - 1);
    const Records<Ngram>& ngrams = orders_.back().ngrams;
    for (std::size_t row = 1; row < ngrams.size(); ++row)
        if (!(ngrams[row - 1] < ngrams[row]))
            throw DuplicateNgram(labels_of(orders_.size(), static_cast<std::uint32_t>(row)));
    sorted_ = true;
}

void AutomatonBuilder::index_continuations(std::size_t lower) {
    std::vector<std::uint32_t>& first = orders_[lower - 1].first;
    first.assign(orders_[lower - 1].ngrams.size() + 1, 0);
    for (const Ngram& ngram : orders_[lower].ngrams) ++first[ngram.context + 1];
    for (std::size_t row = 1; row < first.size(); ++row) first[row] += first[row - 1];
}

std::uint32_t AutomatonBuilder::find(const std::int32_t* labels, std::size_t order) const {
    std::uint32_t row = 0;
    for (std::size_t length = 0; length < order; ++length) {
        const Ngram* ngram = find(length, row, labels[length]);
        if (ngram == nullptr) return kNone;
        row = static_cast<std::uint32_t>(ngram - orders_[length].ngrams.begin());
    }
    return row;
}

const AutomatonBuilder::Ngram* AutomatonBuilder::find(std::size_t lower, std::uint32_t context,
                                                      std::int32_t label) const {
    const Ngram *begin = orders_[lower].ngrams.begin(), *end = orders_[lower].ngrams.end();
    if (lower > 0) {
        const std::uint32_t* const first = orders_[lower - 1].first.data() + context;
        end = begin + first[1];
        begin += first[0];
    }
    const Ngram* ngram = std::ranges::lower_bound(begin, end, label, {}, &Ngram::label);
    return ngram != end && ngram->label == label ? ngram : nullptr;
}

// Before finish(), while the context of every row is still known.
std::vector<std::int32_t> AutomatonBuilder::labels_of(std::size_t order, std::uint32_t row) const {
    std::vector<std::int32_t> labels(order);
    for (; order > 0; --order) {
        const Ngram& ngram = orders_[order - 1].ngrams[row];
        labels[order - 1] = ngram.label;
        row = ngram.context;
    }
    return labels;
}

std::size_t AutomatonBuilder::context_length(std::uint32_t state) const {
    return std::upper_bound(first_state_.begin(), first_state_.end(), state) - first_state_.begin() - 1;
}

AutomatonBuilder::Range AutomatonBuilder::continuations(std::uint32_t state) const {
    const std::size_t length = context_length(state);
    if (length >= orders_.size()) return {nullptr, nullptr};
    const Ngram* ngrams = orders_[length].ngrams.begin();
    if (length == 0) return {ngrams, orders_[0].ngrams.end()};
    const std::vector<std::uint32_t>& first = orders_[length - 1].first;
    return {ngrams + first[row_[state]], ngrams + first[row_[state] + 1]};
}

void AutomatonBuilder::finish() {
    if (orders_.empty()) refuse("expected unigrams, got no n-grams");
    if (!link()) {
        restore_contexts();
        close_suffixes();
        if (!link()) throw std::logic_error("closing the suffixes of a model left one out");
    }
    count_arcs();
}

// Replaces the context of every n-gram by the next state; false, with the work half done, where a suffix is missing.
bool AutomatonBuilder::link() {
    row_.clear();
    failure_.clear();
    first_state_ = {0};
    row_.push_back(0);
    failure_.push_back(0);
    for (std::size_t length = 1; length <= orders_.size(); ++length) {
        Order& order = orders_[length - 1];
        const std::uint32_t context_begin = first_state_[length - 1];
        const std::uint64_t context_end = row_.size();
        first_state_.push_back(static_cast<std::uint32_t>(context_end));
        // Every n-gram's context is a state, because the n-gram continues it: going through the states meets all rows
        // in turn.
        for (std::uint64_t state = context_begin; state < context_end; ++state) {
            const Range range = continuations(static_cast<std::uint32_t>(state));
            const Range shorter =
                length > 1 && range.begin != range.end ? continuations(failure_[state]) : Range{nullptr, nullptr};
            const bool suffix_is_state = context_length(failure_[state]) + 2 == length;
            const Ngram* suffix = shorter.begin;
            for (Ngram* ngram = order.ngrams.begin() + (range.begin - order.ngrams.begin()); ngram != range.end;
                 ++ngram) {
                std::uint32_t next = 0;
                if (length > 1) {
                    suffix = std::ranges::lower_bound(suffix, shorter.end, ngram->label, {}, &Ngram::label);
                    if (!suffix_is_state || suffix == shorter.end || suffix->label != ngram->label) return false;
                    next = suffix->context;
                }
                const auto row = static_cast<std::uint32_t>(ngram - order.ngrams.begin());
                // <s> keeps its state even without continuations, so that writing the model back does not lose the
                // marker; nothing of the highest order backs off.
                if (length == orders_.size()) ngram->backoff = 0;
                const bool is_state =
                    ngram->label == kStart || (length < orders_.size() && ngram->label != kEnd &&
                                               (order.first[row + 1] > order.first[row] || ngram->backoff != 0));
                ngram->context = next;
                if (!is_state) continue;
                if (row_.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
                    refuse("expected at most 2^31 - 1 contexts; prune the model");
                ngram->context = static_cast<std::uint32_t>(row_.size());
                if (ngram->label == kStart) start_ = ngram->context;
                row_.push_back(row);
                failure_.push_back(next);
            }
        }
    }
    return true;
}

void AutomatonBuilder::count_arcs() {
    num_arcs_ = row_.size() - 1;  // every state but that of the empty context backs off
    for (const Order& order : orders_) num_arcs_ += order.ngrams.size();
    for (std::uint64_t state = 0; state < row_.size(); ++state) {
        const Range range = continuations(static_cast<std::uint32_t>(state));
        for (const Ngram* ngram = range.begin; ngram != range.end && ngram->label <= kEnd; ++ngram) --num_arcs_;
    }
    if (num_arcs_ > UINT32_MAX) refuse("expected at most 2^32 - 1 arcs; prune the model");
}

std::vector<std::uint64_t> AutomatonBuilder::num_ngrams() const {
    std::vector<std::uint64_t> counts;
    for (const Order& order : orders_) counts.push_back(order.ngrams.size());
    return counts;
}

namespace {

constexpr std::size_t kBlock = 1 << 20;

// Collects records and hands them on in blocks.
class Block {
  public:
    explicit Block(const std::function<void(const char*, std::size_t)>& sink) : sink_(sink) { bytes_.reserve(kBlock); }
    template <typename Record>
    void put(const Record& record) {
        if (bytes_.size() + sizeof(Record) > kBlock) flush();
        const char* begin = reinterpret_cast<const char*>(&record);
        bytes_.insert(bytes_.end(), begin, begin + sizeof(Record));
    }
    void flush() {
        if (!bytes_.empty()) sink_(bytes_.data(), bytes_.size());
        bytes_.clear();
    }

  private:
    const std::function<void(const char*, std::size_t)>& sink_;
    std::vector<char> bytes_;
};

}  // namespace

void AutomatonBuilder::write(const std::function<void(const char*, std::size_t)>& sink) const {
    Block block(sink);
    std::uint32_t position = 0;
    // Without </s> every state is final at cost 0; a </s> of cost 0 differs from that by the smallest float above 0.
    const Range unigrams = continuations(0);
    const bool ends = std::any_of(unigrams.begin, unigrams.end, [](const Ngram& ngram) { return ngram.label == kEnd; });
    for (std::uint64_t state = 0; state < row_.size(); ++state) {
        const Range range = continuations(static_cast<std::uint32_t>(state));
        StateRecord record{ends ? std::numeric_limits<float>::infinity() : 0.0f, position, 0, state > 0, state > 0};
        const Ngram* ngram = range.begin;
        for (; ngram != range.end && ngram->label <= kEnd; ++ngram)
            if (ngram->label == kEnd)
                record.final_cost = std::max(ngram->cost, std::numeric_limits<float>::denorm_min());
        record.num_arcs = static_cast<std::uint32_t>(range.end - ngram) + (state > 0);
        position += record.num_arcs;
        block.put(record);
    }
    for (std::size_t size = row_.size() * sizeof(StateRecord); size % 16 != 0; ++size) block.put('\0');
    for (std::size_t length = 0; length < first_state_.size(); ++length) {
        const std::uint64_t end = length + 1 < first_state_.size() ? first_state_[length + 1] : row_.size();
        for (std::uint64_t state = first_state_[length]; state < end; ++state) {
            if (state > 0) {
                const float backoff = orders_[length - 1].ngrams[row_[state]].backoff;
                block.put(ArcRecord{0, 0, backoff, static_cast<std::int32_t>(failure_[state])});
            }
            const Range range = continuations(static_cast<std::uint32_t>(state));
            for (const Ngram* ngram = range.begin; ngram != range.end; ++ngram)
                if (ngram->label > kEnd)
                    block.put(
                        ArcRecord{ngram->label, ngram->label, ngram->cost, static_cast<std::int32_t>(ngram->context)});
        }
    }
    block.flush();
}

}  // namespace fst_core
