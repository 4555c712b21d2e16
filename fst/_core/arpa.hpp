// Reads ARPA text in one pass, in pieces of any size, into an AutomatonBuilder.
//
// fst/arpa.py describes what the reader accepts and refuses. It also opens files, unpacks gzip and numbers the words.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "automaton_builder.hpp"

namespace fst_core {

class ArpaParser {
  public:
    // Called once with the words of the unigrams in order of appearance, without markers: returns the token id of each.
    using NumberWords = std::function<std::vector<std::int64_t>(const std::vector<std::string>&)>;

    ArpaParser(NumberWords number_words, bool strict) : number_words_(std::move(number_words)), strict_(strict) {}

    // Reads on. Throws std::invalid_argument that names the line.
    void feed(std::string_view text);
    // Call at the end of the text.
    void finish();

    const AutomatonBuilder& automaton() const { return builder_; }
    std::int32_t unk_label() const { return unk_label_; }
    const std::vector<std::string>& warnings() const { return warnings_; }

  private:
    struct Unigram {
        std::uint32_t word;
        double cost, backoff;
    };
    enum class Part { kPreamble, kCounts, kNgrams, kEnd };

    void read_line(std::string_view line);
    void split(std::string_view line);
    void read_count();
    void begin_section();
    void end_section();
    void read_unigram(double cost, double backoff);
    void read_ngram(double cost, double backoff);
    void number_unigrams();
    double read_number(std::size_t at, const char* what) const;
    std::string joined(std::size_t first, std::size_t last) const;
    std::string words_of(const std::vector<std::int32_t>& labels) const;
    template <typename... Parts>
    [[noreturn]] void fail(Parts... parts) const {
        refuse("line ", line_, ": ", parts...);
    }

    NumberWords number_words_;
    bool strict_;
    AutomatonBuilder builder_;
    std::vector<std::string> warnings_;

    Part part_ = Part::kPreamble;
    std::uint64_t line_ = 0;
    std::string rest_;  // the unfinished line at the end of the last piece
    std::vector<std::string_view> fields_;

    std::vector<std::uint64_t> counts_;  // announced
    std::size_t order_ = 0;              // of the section being read
    std::uint64_t read_ = 0;             // n-grams of the section so far

    std::vector<std::string> words_;
    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
    };
    std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> word_index_;
    std::vector<Unigram> unigrams_;
    std::vector<std::int32_t> label_of_word_;
    std::int32_t unk_label_ = 0;

    // Of the n-gram being read, and of the one before until its fields are replaced.
    std::vector<std::int32_t> labels_;
    std::vector<std::string> last_words_;
    std::uint32_t context_row_ = AutomatonBuilder::kNone;
};

}  // namespace fst_core
