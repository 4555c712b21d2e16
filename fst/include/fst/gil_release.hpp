// Work without Python's global interpreter lock, and calls of Python from it, for every compiled module of the project.
#pragma once

#include <pybind11/pybind11.h>

#include <unistd.h>

namespace fst {

// Releases the lock for its lifetime. At exit Python ends daemon threads that ask for the lock by unwinding their
// stack, which no destructor may be left by: such threads wait here until the process ends.
class GilRelease {
  public:
    GilRelease() : state_(PyEval_SaveThread()) {}
    ~GilRelease() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) ::pause();
        }
    }
    GilRelease(const GilRelease&) = delete;
    GilRelease& operator=(const GilRelease&) = delete;

  private:
    PyThreadState* state_;
};

// Has the lock again for its lifetime, within a GilRelease.
class GilAcquire {
  public:
    GilAcquire() {
        try {
            state_ = PyGILState_Ensure();
        } catch (...) {
            for (;;) ::pause();
        }
    }
    ~GilAcquire() { PyGILState_Release(state_); }
    GilAcquire(const GilAcquire&) = delete;
    GilAcquire& operator=(const GilAcquire&) = delete;

  private:
    PyGILState_STATE state_;
};

}  // namespace fst
