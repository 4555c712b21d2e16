#include "arpa_writer.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "ngram_walk.hpp"

namespace fst_core {

namespace {

constexpr double kResolution = 1e7;  // seven decimals, about what float32 holds
constexpr double kRounding = 1e-6;   // as far above 1 as rounding takes a probability
constexpr std::size_t kPiece = 1 << 20;

void append_log10(std::string& text, double cost) {
    // Adding 0 turns -0 into 0.
    const double value = std::round(std::max(-cost / kLn10, kLog10Zero) * kResolution) / kResolution + 0.0;
    char digits[32];
    text.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void append_word(std::string& text, std::int32_t token, const std::vector<std::string>& words) {
    switch (token) {
        case kBos: text += "<s>"; return;
        case kEos: text += "</s>"; return;
        case kUnk: text += "<unk>"; return;
        default: break;
    }
    if (words.empty()) {
        char digits[16];
        text.append(digits, std::to_chars(digits, digits + sizeof digits, token).ptr);
        return;
    }
    const auto index = static_cast<std::size_t>(token);
    if (index >= words.size() || words[index].empty())
        refuse("token ", token,
               ": expected a word without white space or NUL that is no marker, got another or none; "
               "ARPA cannot hold it, an .fst file can");
    text += words[index];
}

}  // namespace

void write_arpa(const Model& model, const std::vector<std::string>& words, bool markers,
                const std::function<void(std::string_view)>& sink) {
    std::vector<std::uint64_t> counts = count_ngrams(model, false);
    std::string added;
    if (markers) {
        const std::string weight = counts.size() > 1 ? "\t0\n" : "\n";
        // What a token costs that the model does not know, so that KenLM's scores are ours.
        if (model.unk_label() == 0) added += "-434.2944819\t<unk>" + weight;
        if (!model.has_end()) added += "-434.2944819\t</s>\n";
        if (model.start() == model.unigram_state()) added += "-99\t<s>" + weight;
        counts.front() += static_cast<std::uint64_t>(std::count(added.begin(), added.end(), '\n'));
    }
    std::string text = "\\data\\\n";
    for (std::size_t order = 1; order <= counts.size(); ++order)
        text += "ngram " + std::to_string(order) + "=" + std::to_string(counts[order - 1]) + "\n";
    std::size_t order = 1;
    auto begin_order = [&] {
        if (order <= counts.size()) text += "\n\\" + std::to_string(order) + "-grams:\n";
    };
    begin_order();
    text += added;
    walk_ngrams<true>(
        model, false,
        [&](const VisitedNgram& ngram) {
            if (ngram.cost < -kRounding)
                refuse("expected n-grams of a probability of at most 1, which ARPA can hold, got one of e^",
                       -ngram.cost);
            append_log10(text, std::max(ngram.cost, 0.0));
            char separator = '\t';
            for (const std::int32_t token : ngram.context) {
                text += separator;
                append_word(text, token, words);
                separator = ' ';
            }
            text += separator;
            append_word(text, ngram.token, words);
            if (order < counts.size() && ngram.token != kEos) {
                text += '\t';
                append_log10(text, backoff_cost(model, ngram));
            }
            text += '\n';
            if (text.size() >= kPiece) {
                sink(text);
                text.clear();
            }
        },
        [&] {
            ++order;
            begin_order();
        });
    text += "\n\\end\\\n";
    sink(text);
}

}  // namespace fst_core
