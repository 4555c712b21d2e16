// Preloaded by tests/test_scarce_memory.py: one allocation of C++ fails, or every new thread does.

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <new>

namespace {

std::atomic<long> left{-1};  // allocations until the one that fails; negative: none does
std::atomic<std::size_t> spared{0};
std::atomic<bool> threads{true};

void count(std::size_t size) {
    if (size >= spared && left.load() >= 0 && left.fetch_sub(1) == 0) throw std::bad_alloc();
}

template <typename Function>
Function next(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

// The allocation that fails, of those of at least so many bytes, counted from 0; -1: none.
void fail_allocation(long number, std::size_t size) {
    left = number;
    spared = size;
}
// Whether it has failed.
int has_failed() { return left < 0; }
void refuse_threads() { threads = false; }

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
    static const auto real = next<decltype(&pthread_create)>("pthread_create");
    return threads ? real(thread, attributes, run, argument) : EAGAIN;
}
}

void* operator new(std::size_t size) {
    static const auto real = next<void* (*)(std::size_t)>("_Znwm");
    count(size);
    return real(size);
}

void* operator new(std::size_t size, std::align_val_t alignment) {
    static const auto real = next<void* (*)(std::size_t, std::align_val_t)>("_ZnwmSt11align_val_t");
    count(size);
    return real(size, alignment);
}
