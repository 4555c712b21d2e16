// Work without the interpreter's lock, for both compiled modules.
#pragma once

#include <pybind11/pybind11.h>

#include <unistd.h>

namespace latticebpd {

// Python goes on meanwhile.  At exit it ends daemon threads that come back by unwinding, which no destructor may be left by: they stay
// here until the process is gone.
class Released {
  public:
    Released() : state_(PyEval_SaveThread()) {}
    ~Released() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) ::pause();
        }
    }
    Released(const Released&) = delete;
    Released& operator=(const Released&) = delete;

  private:
    PyThreadState* state_;
};

}  // namespace latticebpd
