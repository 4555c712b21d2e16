// Vectors of a cache, moved to other places.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

namespace latticebpd {

using Move = std::array<std::size_t, 3>;  // a row, a place, and where what stands there is to stand

// buffer: [rows, heads, places] vectors of so many bytes.  All are taken up before the first is put down.
inline void move_places(char* buffer, std::size_t heads, std::size_t places, std::size_t bytes, const std::vector<Move>& moves) {
    if (bytes == 0) return;
    std::vector<char> held(moves.size() * bytes);
    for (std::size_t head = 0; head < heads; ++head) {
        const auto at = [&](const Move& move, std::size_t end) { return buffer + ((move[0] * heads + head) * places + move[end]) * bytes; };
        for (std::size_t i = 0; i < moves.size(); ++i) std::memcpy(held.data() + i * bytes, at(moves[i], 1), bytes);
        for (std::size_t i = 0; i < moves.size(); ++i) std::memcpy(at(moves[i], 2), held.data() + i * bytes, bytes);
    }
}

}  // namespace latticebpd
