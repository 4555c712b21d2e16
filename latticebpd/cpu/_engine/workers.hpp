// Who computes a pass: an instruction set's operations, and threads that help where there are cores for them.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <fst/refuse.hpp>
#include <fst/thread_pool.hpp>

#include "operations.hpp"

namespace engine {

struct Workers {
    Workers(const Operations& own, std::size_t number) : operations(own), threads(number) {
        if (threads < 1 || threads > std::numeric_limits<std::int32_t>::max())
            fst::refuse("expected a number of threads from 1 to 2^31 - 1, got ", threads);
    }

    const Operations& operations;
    std::size_t threads;

    template <typename Task>
    void run(std::size_t count, const Task& task) const {
        if (threads <= 1 || count <= 1)
            for (std::size_t i = 0; i < count; ++i) task(i);
        else fst::ThreadPool::instance().run(threads, count, task);
    }

    // task(row) for every row; few rows are not worth a thread's attention.
    template <typename Task>
    void each(std::size_t rows, const Task& task) const {
        constexpr std::size_t kRows = 4;  // of a task
        if (rows <= 2 * kRows)
            for (std::size_t row = 0; row < rows; ++row) task(row);
        else
            run((rows + kRows - 1) / kRows, [&](std::size_t part) {
                for (std::size_t row = part * kRows; row < std::min(rows, (part + 1) * kRows); ++row) task(row);
            });
    }
};

// How many threads the next pass takes. A thread whose core is busy holds up all others: where a pass waited for
// threads a fifth of its time, the next passes have one, twice as many after each such pass.
class Contention {
  public:
    std::size_t allowed(std::size_t threads) {
        if (threads <= 1) return 1;
        int left = single_passes_.load();
        while (left > 0 && !single_passes_.compare_exchange_weak(left, left - 1)) {
        }
        return left > 0 ? 1 : threads;
    }

    // After a pass of several threads.
    void report(std::chrono::nanoseconds waited, std::chrono::nanoseconds total) {
        if (waited * 5 > total && waited > std::chrono::microseconds(200)) {
            penalty_ = std::min(kMost, penalty_ * 2);
            single_passes_ = penalty_.load();
        } else {
            penalty_ = std::max(kLeast, penalty_ / 2);
        }
    }

  private:
    static constexpr int kLeast = 8, kMost = 256;
    std::atomic<int> single_passes_{0}, penalty_{kLeast};
};

}  // namespace engine
