// Threads that share out a piece of work, for kernels that take some tens of microseconds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include <pthread.h>

namespace latticebpd {

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Threads that share out the numbers 0 .. count - 1.  They look out for work for a moment before they sleep, since a model's layers
// come one right after the other.  The caller works too and never waits for one that has not begun.
class Pool {
  public:
    static Pool& instance() {
        static std::once_flag once;
        std::call_once(once, [] {
            pool_ = new Pool;  // never deleted: threads may look at it until the process is gone
            pthread_atfork(nullptr, nullptr, [] { pool_ = new Pool; });  // a child has none of its parent's threads
        });
        return *pool_;
    }

    void run(std::size_t threads, std::size_t count, const std::function<void(std::size_t)>& work) {
        std::unique_lock<std::mutex> own(busy_, std::try_to_lock);
        if (threads <= 1 || count <= 1 || !own) {  // another thread's work has the pool
            for (std::size_t i = 0; i < count; ++i) work(i);
            return;
        }
        while (size_ + 1 < threads) {
            std::thread([this, number = ++size_] { serve(number); }).detach();
        }
        work_ = &work;
        count_ = count;
        helpers_ = threads - 1;
        next_.store(0);
        round_.fetch_add(1);  // odd: open
        round_.notify_all();
        take();
        round_.fetch_add(1);
        while (inside_.load() != 0) pause();
    }

  private:
    void take() {
        for (std::size_t i; (i = next_.fetch_add(1)) < count_;) (*work_)(i);
    }

    void serve(std::size_t number) {
        std::uint32_t seen = 0;
        for (;;) {
            for (int spins = 0; spins < 4000 && round_.load() == seen; ++spins) pause();
            round_.wait(seen);
            seen = round_.load();
            if (seen % 2 == 0) continue;
            inside_.fetch_add(1);
            if (round_.load() == seen && number <= helpers_) take();
            inside_.fetch_sub(1);
        }
    }

    static inline Pool* pool_ = nullptr;
    std::mutex busy_;
    std::size_t size_ = 0;
    const std::function<void(std::size_t)>* work_ = nullptr;
    std::size_t count_ = 0, helpers_ = 0;
    std::atomic<std::size_t> next_{0};
    std::atomic<std::uint32_t> round_{0};
    std::atomic<int> inside_{0};
};

}  // namespace latticebpd
