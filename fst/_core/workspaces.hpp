// The searches' memory, and the threads that search the lattices of a batch.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include <fst/gil_release.hpp>

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

// A workspace from those that are kept between calls: a search allocates nothing once warm, although the threads of a
// batch end with it.
class BorrowedWorkspace {
  public:
    BorrowedWorkspace() {
        const std::lock_guard lock(mutex_);
        if (spare_.empty()) spare_.push_back(std::make_unique<Workspace>());
        workspace_ = std::move(spare_.back());
        spare_.pop_back();
    }
    ~BorrowedWorkspace() {
        const std::lock_guard lock(mutex_);
        spare_.push_back(std::move(workspace_));
    }
    BorrowedWorkspace(const BorrowedWorkspace&) = delete;
    BorrowedWorkspace& operator=(const BorrowedWorkspace&) = delete;
    Workspace& operator*() { return *workspace_; }
    Workspace* operator->() { return workspace_.get(); }

  private:
    static inline std::mutex mutex_;
    static inline std::vector<std::unique_ptr<Workspace>> spare_;
    std::unique_ptr<Workspace> workspace_;
};

// search(i, workspace) of every lattice of a batch, which the workspace then holds, on up to `threads` threads. The
// lattices are independent, so the outcome does not depend on the number of threads; of several failures the first
// lattice's is reported.
template <typename Search>
auto results_of(const SausageBatch& batch, std::int64_t threads, const Search& search) {
    std::vector<std::decay_t<std::invoke_result_t<Search, std::int64_t, Workspace&>>> results(batch.size);
    std::vector<std::exception_ptr> failures(batch.size);
    std::atomic<std::int64_t> next{0};
    const auto drain = [&] {
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
    {
        std::vector<std::jthread> helpers;
        for (std::int64_t i = 1; i < std::min(threads, batch.size); ++i) helpers.emplace_back(drain);
        drain();
    }
    for (const std::exception_ptr& failure : failures)
        if (failure != nullptr) std::rethrow_exception(failure);
    return results;
}

}  // namespace fst_core
