// Threads that share out a piece of work, for kernels that take some tens of microseconds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <pthread.h>

namespace latticebpd {

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Threads that share out the numbers 0 .. count - 1.  They look out for work for a moment before they sleep, since a model's layers
// come one right after the other.  The caller works too and never waits for one that has not begun.
//
// A child of os.fork() has none of them, nor knows what they were doing: it begins with a new pool, whose threads start with its first
// work (PyTorch's data loaders, which compute on one thread, start none).  Nobody ends them: at exit they sleep or look out, touch
// nothing but the pool, which is never deleted, and go with the process.
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

    // work(i) for every i.  Where some fail, the first failure is thrown once nobody works any more; numbers not begun are left out.
    void run(std::size_t threads, std::size_t count, const std::function<void(std::size_t)>& work) {
        std::unique_lock<std::mutex> own(busy_, std::try_to_lock);
        if (threads <= 1 || count <= 1 || !own) {  // another thread's work has the pool
            for (std::size_t i = 0; i < count; ++i) work(i);
            return;
        }
        try {
            for (; size_ + 1 < threads; ++size_) std::thread([this, number = size_ + 1] { serve(number); }).detach();
        } catch (const std::system_error&) {  // the system has no more of them: those there are do it
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
        if (const std::exception_ptr failure = std::exchange(failure_, nullptr)) std::rethrow_exception(failure);
    }

  private:
    void take() {
        try {
            for (std::size_t i; (i = next_.fetch_add(1)) < count_;) (*work_)(i);
        } catch (...) {
            next_.store(count_);
            const std::lock_guard<std::mutex> lock(failing_);
            if (failure_ == nullptr) failure_ = std::current_exception();
        }
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
    std::mutex failing_;
    std::exception_ptr failure_;
    std::atomic<std::size_t> next_{0};
    std::atomic<std::uint32_t> round_{0};
    std::atomic<int> inside_{0};
};

}  // namespace latticebpd
