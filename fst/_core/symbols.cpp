#include "symbols.hpp"

#include <cstring>
#include <stdexcept>
#include <string>

namespace fst_core {

SymbolEntries read_symbols(std::span<const std::byte> file, std::int64_t begin, std::int64_t count) {
    const auto size = static_cast<std::int64_t>(file.size());
    std::int64_t at = begin;
    SymbolEntries entries;
    auto need = [&](std::int64_t bytes) {
        if (at < 0 || bytes < 0 || at > size || bytes > size - at)
            throw std::invalid_argument("byte " + std::to_string(at) +
                                        ": expected a symbol and its label, got the end of the file; it is damaged");
    };
    for (std::int64_t entry = 0; entry < count; ++entry) {
        std::int32_t length = 0;
        need(sizeof length);
        std::memcpy(&length, file.data() + at, sizeof length);
        at += sizeof length;
        need(length);
        entries.begins.push_back(at);
        entries.lengths.push_back(length);
        at += length;
        std::int64_t label = 0;
        need(sizeof label);
        std::memcpy(&label, file.data() + at, sizeof label);
        at += sizeof label;
        entries.labels.push_back(label);
    }
    entries.end = at;
    return entries;
}

}  // namespace fst_core
