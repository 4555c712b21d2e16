// Threads for searches and for kernels that take some tens of microseconds.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include <pthread.h>

namespace fst {

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Threads that share the tasks 0 .. count - 1. They spin for a moment before they sleep, since a model's layers follow
// each other at once. The caller takes tasks too, and never waits for a thread that has not begun.
//
// Each compiled module has one pool, and of several callers at a time one has its threads: the others do their tasks
// alone. Where the system gives no thread or no memory for one, those that there are do all tasks. A child of os.fork()
// gets a new pool, whose threads start with its first tasks. Nobody joins the threads: at exit they touch nothing but
// the pool, which is never deleted, and end with the process.
class ThreadPool {
  public:
    static ThreadPool& instance() {
        static std::once_flag once;
        std::call_once(once, [] {
            pool_ = new ThreadPool;
            pthread_atfork(nullptr, nullptr, [] { pool_ = new ThreadPool; });
        });
        return *pool_;
    }

    // How long the calling thread has waited for others.
    static std::chrono::nanoseconds& waited() {
        thread_local std::chrono::nanoseconds total{0};
        return total;
    }

    // task(i) for every i. After a failure no further task begins; the first is rethrown when all threads are done.
    void run(std::size_t threads, std::size_t count, const std::function<void(std::size_t)>& task) {
        threads = std::min(threads, count);
        const std::unique_lock<std::mutex> own(busy_, std::try_to_lock);
        if (threads <= 1 || !own) {
            for (std::size_t i = 0; i < count; ++i) task(i);
            return;
        }
        try {
            for (; size_ + 1 < threads; ++size_) std::thread([this, number = size_ + 1] { serve(number); }).detach();
        } catch (const std::exception&) {  // no more threads, or no memory for them
        }
        task_ = &task;
        count_ = count;
        helpers_ = threads - 1;
        next_.store(0);
        round_.fetch_add(1);  // odd: open
        round_.notify_all();
        take();
        round_.fetch_add(1);
        if (inside_.load() != 0) {
            const auto begin = std::chrono::steady_clock::now();
            for (int spins = 0; spins < kSpins && inside_.load() != 0; ++spins) pause();
            for (int inside; (inside = inside_.load()) != 0;) inside_.wait(inside);
            waited() += std::chrono::steady_clock::now() - begin;
        }
        if (const std::exception_ptr failure = std::exchange(failure_, nullptr)) std::rethrow_exception(failure);
    }

  private:
    static constexpr int kSpins = 4000;

    void take() {
        try {
            for (std::size_t i; (i = next_.fetch_add(1)) < count_;) (*task_)(i);
        } catch (...) {
            next_.store(count_);
            const std::lock_guard<std::mutex> lock(failing_);
            if (failure_ == nullptr) failure_ = std::current_exception();
        }
    }

    void serve(std::size_t number) {
        std::uint32_t seen = 0;
        for (;;) {
            for (int spins = 0; spins < kSpins && round_.load() == seen; ++spins) pause();
            round_.wait(seen);
            seen = round_.load();
            if (seen % 2 == 0) continue;
            inside_.fetch_add(1);
            if (round_.load() == seen && number <= helpers_) take();
            if (inside_.fetch_sub(1) == 1) inside_.notify_one();
        }
    }

    static inline ThreadPool* pool_ = nullptr;
    std::mutex busy_, failing_;
    std::size_t size_ = 0, count_ = 0, helpers_ = 0;
    const std::function<void(std::size_t)>* task_ = nullptr;
    std::exception_ptr failure_;
    std::atomic<std::size_t> next_{0};
    std::atomic<std::uint32_t> round_{0};
    std::atomic<int> inside_{0};
};

}  // namespace fst
