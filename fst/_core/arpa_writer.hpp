// Writes the n-grams of an automaton as ARPA text, in the canonical form that fst/arpa.py describes.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model.hpp"

namespace fst_core {

// words: of every token; none where tokens are written as numbers. markers: adds those of <s>, </s> and <unk> that the
// model lacks, at log 0, because KenLM demands them. Passes the text to `sink` piece by piece. Throws
// std::invalid_argument for a token without a word, for a probability above 1, and whatever walk_ngrams() throws.
void write_arpa(const Model& model, const std::vector<std::string>& words, bool markers,
                const std::function<void(std::string_view)>& sink);

}  // namespace fst_core
