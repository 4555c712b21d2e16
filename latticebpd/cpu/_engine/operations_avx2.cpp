// The loops for x86-64 with AVX2, FMA and F16C; setup.py compiles this file for them.

#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "expected -mavx2 -mfma -mf16c for this file, as setup.py has them"
#endif

#include "operations.hpp"

#define ENGINE_ISA 1
#include "operations/loops.inc"

namespace engine {

const Operations avx2_operations = kOperations;

}  // namespace engine
#endif
