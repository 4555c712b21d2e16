// Finds the entries of an OpenFst symbol table, each an int32 length, the bytes of the symbol and an int64 label.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fst_core {

struct SymbolEntries {
    std::vector<std::int64_t> labels, begins, lengths;  // where in the file the bytes of each symbol stand
    std::int64_t end = 0;                               // of the last entry
};

// Reads `count` entries from byte `begin` on. Throws std::invalid_argument where the file ends before them.
SymbolEntries read_symbols(std::span<const std::byte> file, std::int64_t begin, std::int64_t count);

}  // namespace fst_core
