// The searches' memory, and the threads that search the lattices of a batch.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <list>
#include <mutex>

#include <fst/gil_release.hpp>
#include <fst/thread_pool.hpp>

#include "calibrated.hpp"
#include "nbest.hpp"
#include "posteriors.hpp"
#include "sausage_batch.hpp"
#include "tree.hpp"

namespace fst_core {

// What one thread works with.
struct Workspace {
    Lattice lattice;
    NbestSearch nbest;
    PosteriorSearch posteriors;
    TreeSearch tree;
    CalibratedSearch calibrated;
};

// A workspace from those that are kept between calls: a search allocates nothing once warm. Giving it back allocates
// nothing either, so that it cannot fail; daemon threads may do so until the process ends.
class BorrowedWorkspace {
  public:
    BorrowedWorkspace() {
        {
            const std::lock_guard lock(mutex_);
            if (!spare().empty()) own_.splice(own_.begin(), spare(), spare().begin());
        }
        if (own_.empty()) own_.emplace_back();
    }
    ~BorrowedWorkspace() {
        const std::lock_guard lock(mutex_);
        spare().splice(spare().begin(), own_);
    }
    BorrowedWorkspace(const BorrowedWorkspace&) = delete;
    BorrowedWorkspace& operator=(const BorrowedWorkspace&) = delete;
    Workspace& operator*() { return own_.front(); }
    Workspace* operator->() { return &own_.front(); }

  private:
    static std::list<Workspace>& spare() {
        static auto* const kept = new std::list<Workspace>;
        return *kept;
    }
    static inline std::mutex mutex_;
    std::list<Workspace> own_;  // one
};

// search(i, workspace) of every lattice of a batch, which the workspace then holds, on up to `threads` threads. The
// lattices are independent, so the outcome does not depend on the number of threads; of several failures the first
// lattice's is reported.
template <typename Search>
auto results_of(const SausageBatch& batch, std::int64_t threads, const Search& search) {
    std::vector<std::decay_t<std::invoke_result_t<Search, std::int64_t, Workspace&>>> results(batch.size);
    std::vector<std::exception_ptr> failures(batch.size);
    std::atomic<std::int64_t> next{0};
    const auto drain = [&](std::size_t) {
        BorrowedWorkspace workspace;
        for (std::int64_t i; (i = next.fetch_add(1)) < batch.size;) {
            try {
                workspace->lattice.assign(batch.lattice(i), batch.model, batch.name(i).c_str());
                results[i] = search(i, *workspace);
            } catch (...) {
                failures[i] = std::current_exception();
            }
        }
    };
    const fst::GilRelease gil_release;
    const auto drains = static_cast<std::size_t>(std::max<std::int64_t>(1, std::min(threads, batch.size)));
    fst::ThreadPool::instance().run(drains, drains, drain);
    for (const std::exception_ptr& failure : failures)
        if (failure != nullptr) std::rethrow_exception(failure);
    return results;
}

}  // namespace fst_core
