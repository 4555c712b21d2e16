// Key and value vectors of a cache, copied to other positions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace engine {

using Move = std::array<std::size_t, 3>;  // row, source, destination

// buffer: [rows, heads, positions] vectors of so many bytes. All are read before the first is written.
inline void move_vectors(std::uint8_t* buffer, std::size_t heads, std::size_t positions, std::size_t bytes,
                         const std::vector<Move>& moves) {
    if (bytes == 0) return;
    std::vector<std::uint8_t> held(moves.size() * bytes);
    for (std::size_t head = 0; head < heads; ++head) {
        const auto at = [&](std::size_t row, std::size_t position) {
            return buffer + ((row * heads + head) * positions + position) * bytes;
        };
        for (std::size_t i = 0; i < moves.size(); ++i)
            std::memcpy(held.data() + i * bytes, at(moves[i][0], moves[i][1]), bytes);
        for (std::size_t i = 0; i < moves.size(); ++i)
            std::memcpy(at(moves[i][0], moves[i][2]), held.data() + i * bytes, bytes);
    }
}

}  // namespace engine
