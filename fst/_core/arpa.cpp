#include "arpa.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "ngram_walk.hpp"

namespace fst_core {

namespace {

constexpr std::size_t kLongestLine = 1 << 20;
constexpr std::int64_t kLargestToken =
    std::numeric_limits<std::int32_t>::max() - 2;  // leaves labels for it and for <unk>

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

double cost_of(double log10_value) {
    return log10_value > kLog10Zero ? -log10_value * kLn10 : AutomatonBuilder::kZeroCost;
}

bool read_integer(std::string_view text, std::uint64_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string ArpaParser::joined(std::size_t first, std::size_t last) const {
    std::string text;
    for (std::size_t i = first; i < last && text.size() <= 80; ++i)
        text.append(i > first ? " " : "").append(fields_[i].substr(0, 81));
    if (text.size() > 80) text = text.substr(0, 77) + "...";
    return "'" + text + "'";
}

void ArpaParser::feed(std::string_view text) {
    while (part_ != Part::kEnd) {
        const std::size_t end = text.find('\n');
        if (rest_.size() + std::min(end, text.size()) > kLongestLine) {
            ++line_;
            fail("expected lines of at most ", kLongestLine, " bytes; this is no ARPA file");
        }
        if (end == std::string_view::npos) {
            rest_.append(text);
            return;
        }
        if (rest_.empty()) {
            read_line(text.substr(0, end));
        } else {
            rest_.append(text.substr(0, end));
            read_line(rest_);
            rest_.clear();
        }
        text.remove_prefix(end + 1);
    }
}

void ArpaParser::finish() {
    if (part_ != Part::kEnd && !rest_.empty()) read_line(rest_);
    switch (part_) {
        case Part::kPreamble: fail("expected \\data\\, got the end of the file; this is no ARPA model");
        case Part::kCounts: fail("expected \\1-grams:, got the end of the file; it is truncated");
        case Part::kNgrams: fail("expected an n-gram or \\end\\, got the end of the file; it is truncated");
        case Part::kEnd: builder_.finish();
    }
}

void ArpaParser::split(std::string_view line) {
    fields_.clear();
    const char* at = line.data();
    const char* const end = at + line.size();
    for (;;) {
        while (at != end && is_space(*at)) ++at;
        if (at == end) return;
        const char* const begin = at;
        while (at != end && !is_space(*at)) ++at;
        fields_.emplace_back(begin, static_cast<std::size_t>(at - begin));
    }
}

void ArpaParser::read_line(std::string_view line) {
    if (++line_ == 1 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);  // a byte order mark
    split(line);
    if (fields_.empty()) return;
    const bool heading = fields_.size() == 1 && fields_[0].front() == '\\';
    switch (part_) {
        case Part::kPreamble:
            if (heading && fields_[0] == "\\data\\") part_ = Part::kCounts;
            return;
        case Part::kCounts:
            if (!heading) return read_count();
            if (counts_.empty()) fail("expected 'ngram 1=<count>', got ", joined(0, 1));
            return begin_section();
        case Part::kNgrams: break;
        case Part::kEnd: return;
    }
    if (heading) {
        end_section();
        return begin_section();
    }
    if (fields_.size() < order_ + 1 || fields_.size() > order_ + 2)
        fail("expected a log-probability, ", order_, (order_ == 1 ? " word" : " words"),
             " and perhaps a backoff weight, got ", fields_.size(), " fields");
    const double log10_prob = read_number(0, "log-probability");
    if (log10_prob > 0) fail("expected a log-probability of at most 0, got ", fields_[0]);
    const double log10_backoff = fields_.size() == order_ + 2 ? read_number(order_ + 1, "backoff weight") : 0;
    if (log10_backoff * kLn10 > AutomatonBuilder::kZeroCost)
        fail("expected a backoff weight (log10) of at most 434, got ", fields_[order_ + 1]);
    ++read_;
    if (order_ == 1) read_unigram(cost_of(log10_prob), cost_of(log10_backoff));
    else read_ngram(cost_of(log10_prob), cost_of(log10_backoff));
}

void ArpaParser::read_count() {
    // White space may stand anywhere in `ngram 1=4`.
    std::string text;
    for (std::string_view field : fields_) text += field;
    const std::size_t equals = text.find('=');
    std::uint64_t order = 0, count = 0;
    if (text.rfind("ngram", 0) != 0 || equals == std::string::npos ||
        !read_integer(std::string_view(text).substr(5, equals - 5), order) ||
        !read_integer(std::string_view(text).substr(equals + 1), count) || order != counts_.size() + 1)
        fail("expected 'ngram ", counts_.size() + 1, "=<count>', got ", joined(0, fields_.size()));
    if (order > kHighestOrder) fail("expected a model of order ", kHighestOrder, " at most");
    counts_.push_back(count);
}

void ArpaParser::begin_section() {
    const bool last = order_ == counts_.size();
    const std::string expected = last ? "\\end\\" : "\\" + std::to_string(order_ + 1) + "-grams:";
    if (fields_[0] != expected) fail("expected ", expected, ", got ", joined(0, 1));
    part_ = last ? Part::kEnd : Part::kNgrams;
    ++order_;
    read_ = 0;
    last_words_.clear();
    context_row_ = AutomatonBuilder::kNone;
}

void ArpaParser::end_section() {
    const std::uint64_t announced = counts_[order_ - 1];
    if (read_ != announced) {
        const std::string message = "expected the " + std::to_string(announced) + " " + std::to_string(order_) +
                                    "-grams that \\data\\ announces, got " + std::to_string(read_);
        if (strict_) fail(message, "; the file is damaged, or pass strict=False");
        warnings_.push_back("line " + std::to_string(line_) + ": " + message);
    }
    if (order_ == 1) number_unigrams();
    try {
        builder_.end_order();
    } catch (const DuplicateNgram& error) {
        fail("expected every n-gram once, but '", words_of(error.labels), "' occurs twice in the section before");
    }
}

std::string ArpaParser::words_of(const std::vector<std::int32_t>& labels) const {
    std::string text;
    for (const std::int32_t label : labels)
        for (const auto& [word, index] : word_index_)
            if (label_of_word_[index] == label) {
                text.append(text.empty() ? "" : " ").append(word);
                break;
            }
    return text;
}

void ArpaParser::read_unigram(double cost, double backoff) {
    std::string word(fields_[1] == "<UNK>" ? "<unk>" : fields_[1]);
    const auto index = static_cast<std::uint32_t>(words_.size());
    if (!word_index_.emplace(word, index).second) fail("the unigram ", joined(1, 2), " occurs twice");
    words_.push_back(std::move(word));
    unigrams_.push_back({index, cost, backoff});
}

void ArpaParser::number_unigrams() {
    std::vector<std::string> plain;
    for (const std::string& word : words_)
        if (word != "<s>" && word != "</s>" && word != "<unk>") plain.push_back(word);
    const std::vector<std::int64_t> tokens = number_words_(plain);
    if (tokens.size() != plain.size()) refuse("expected one token id for each word");
    std::int64_t largest = -1;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] < 0 || tokens[i] > kLargestToken)
            refuse("expected token ids from 0 to ", kLargestToken, ", got ", tokens[i], " for '", plain[i], "'");
        largest = std::max(largest, tokens[i]);
    }
    std::size_t next = 0;
    for (const Unigram& unigram : unigrams_) {
        const std::string& word = words_[unigram.word];
        std::int32_t label;
        if (word == "<s>") {
            label = AutomatonBuilder::kStart;
        } else if (word == "</s>") {
            label = AutomatonBuilder::kEnd;
        } else if (word == "<unk>") {
            label = unk_label_ = static_cast<std::int32_t>(largest + 2);
        } else {
            label = static_cast<std::int32_t>(tokens[next++] + 1);
        }
        label_of_word_.push_back(label);
        builder_.add(0, label, unigram.cost, unigram.backoff);
    }
    unigrams_ = {};
    words_ = {};
}

void ArpaParser::read_ngram(double cost, double backoff) {
    // Files are sorted in one way or another, so most words stand where they stood in the line before.
    labels_.resize(order_);
    last_words_.resize(order_);
    for (std::size_t i = 1; i <= order_; ++i) {
        if (!last_words_[i - 1].empty() && last_words_[i - 1] == fields_[i]) continue;
        last_words_[i - 1].clear();
        auto word = word_index_.find(fields_[i]);
        if (word == word_index_.end() && fields_[i] == "<UNK>") word = word_index_.find(std::string_view("<unk>"));
        if (word == word_index_.end()) fail("expected words of the unigrams, got ", joined(i, i + 1));
        const std::int32_t label = label_of_word_[word->second];
        if ((label == AutomatonBuilder::kStart && i > 1) || (label == AutomatonBuilder::kEnd && i < order_))
            fail("expected <s> only at the beginning of an n-gram and </s> only at its end, got ",
                 joined(1, order_ + 1));
        labels_[i - 1] = label;
        last_words_[i - 1] = fields_[i];
        if (i < order_) context_row_ = AutomatonBuilder::kNone;
    }
    if (context_row_ == AutomatonBuilder::kNone) context_row_ = builder_.find(labels_.data(), order_ - 1);
    if (context_row_ == AutomatonBuilder::kNone)
        fail("expected the context of ", joined(1, order_ + 1), " among the ", order_ - 1,
             "-grams, where it is missing");
    builder_.add(context_row_, labels_.back(), cost, backoff);
}

double ArpaParser::read_number(std::size_t at, const char* what) const {
    const std::string_view field = fields_[at];
    const char* begin = field.data();
    const char* const end = begin + field.size();
    if (field.size() > 1 && field[0] == '+' && field[1] != '-') ++begin;
    double value = 0;
    const auto [stop, error] = std::from_chars(begin, end, value);
    if (error != std::errc() || stop != end || std::isnan(value) || value == std::numeric_limits<double>::infinity())
        fail("expected a ", what, " (log10), got ", joined(at, at + 1));
    return value;
}

}  // namespace fst_core
