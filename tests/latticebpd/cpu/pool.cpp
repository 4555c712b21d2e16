// The thread pool by itself: every task once, failures, other callers, children of fork().  Built and run by
// tests/sanitize.sh under ThreadSanitizer, and by test_kernels.py; exit status 1 with what was wrong.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "../../../fst/include/fst/thread_pool.hpp"

namespace {

using fst::ThreadPool;

void require(bool right, const char* what) {
    if (right) return;
    std::fprintf(stderr, "%s\n", what);
    std::_Exit(1);
}

// Many rounds, some close together and some after the helpers have gone to sleep; plain numbers, so that a race is
// seen.
void every_task_once(std::size_t threads, int rounds) {
    std::vector<int> times(257);
    for (int round = 0; round < rounds; ++round) {
        const std::size_t count = 2 + static_cast<std::size_t>(round) % 256;
        ThreadPool::instance().run(threads, count, [&](std::size_t i) { ++times[i]; });
        for (std::size_t i = 0; i < times.size(); ++i)
            require(times[i] == (i < count ? 1 : 0), "a task was left out or done twice");
        times.assign(times.size(), 0);
        if (round % 100 == 0) usleep(2000);
    }
}

// Whoever fails, the caller or a helper.
void failures_reach_the_caller(std::size_t threads, int rounds) {
    for (int round = 0; round < rounds; ++round) {
        const auto caller = std::this_thread::get_id();
        bool thrown = false;
        std::atomic<int> helped{0};
        try {
            ThreadPool::instance().run(threads, 64, [&](std::size_t i) {
                const bool own = std::this_thread::get_id() == caller;
                if (!own) ++helped;
                if (own == (round % 2 == 0) && i >= 8) throw std::runtime_error("number " + std::to_string(i));
                usleep(20);
            });
        } catch (const std::runtime_error&) {
            thrown = true;
        }
        require(thrown || helped == 0 || round % 2 == 0, "a helper's failure was lost");
        every_task_once(threads, 3);
    }
}

void callers_do_not_disturb_each_other() {
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; ++i) callers.emplace_back([] { every_task_once(3, 300); });
    for (std::thread& caller : callers) caller.join();
}

void a_child_has_a_pool_of_its_own() {
    std::vector<int> times(64);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        ThreadPool::instance().run(3, times.size(), [&](std::size_t i) { ++times[i]; });
        for (const int each : times) require(each == 1, "a child's work was not done");
        std::_Exit(0);
    }
    int status = 0;
    require(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child failed");
}

}  // namespace

int main() {
    for (const std::size_t threads : {1, 2, 4}) every_task_once(threads, 500);
    failures_reach_the_caller(3, 60);
    callers_do_not_disturb_each_other();
    a_child_has_a_pool_of_its_own();
    every_task_once(4, 200);
}
