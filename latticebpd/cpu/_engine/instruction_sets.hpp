// Row operations, compiled for every instruction set and shared out among threads.
//
// A row operation is a struct with `row(i)`, which is inlined into the loops below, and so compiled for each loop's
// instruction set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "thread_pool.hpp"

namespace engine {

enum class Isa { kPlain, kAvx2, kAvx512 };

// The processor's instruction sets, widest first.
inline std::vector<Isa> isas() {
    std::vector<Isa> supported;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma")) supported.push_back(Isa::kAvx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) supported.push_back(Isa::kAvx2);
#endif
    supported.push_back(Isa::kPlain);
    return supported;
}

template <typename Op>
[[gnu::always_inline]] inline void plain_rows(const Op& op, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) op.row(i);
}
#if defined(__x86_64__)
template <typename Op>
[[gnu::target("avx2,fma")]] void avx2_rows(const Op& op, std::size_t begin, std::size_t end) {
    plain_rows(op, begin, end);
}
template <typename Op>
[[gnu::target("avx512f,avx2,fma")]] void avx512_rows(const Op& op, std::size_t begin, std::size_t end) {
    plain_rows(op, begin, end);
}
#endif

// The rows begin .. end - 1 of an operation, in the caller's thread.
template <typename Op>
void run_rows(const Op& op, std::size_t begin, std::size_t end, [[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
    if (isa == Isa::kAvx512) return avx512_rows(op, begin, end);
    if (isa == Isa::kAvx2) return avx2_rows(op, begin, end);
#endif
    plain_rows(op, begin, end);
}

// All rows of an operation; `grain` rows are one task of a thread.
template <typename Op>
void for_each_row(const Op& op, std::size_t rows, std::size_t threads, Isa isa, std::size_t grain = 8) {
    ThreadPool::instance().run(threads, (rows + grain - 1) / grain, [&](std::size_t i) {
        run_rows(op, i * grain, std::min(rows, (i + 1) * grain), isa);
    });
}

}  // namespace engine
