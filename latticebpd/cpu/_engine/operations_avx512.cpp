// The loops for x86-64 with AVX-512 and its VNNI; setup.py compiles this file for them.

#if defined(__x86_64__)
#if !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__) || !defined(__AVX512VNNI__)
#error "expected -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni for this file, as setup.py has them"
#endif

#include "operations.hpp"

#define ENGINE_ISA 2
#include "operations/loops.inc"

namespace engine {

const Operations avx512_operations = kOperations;

}  // namespace engine
#endif
