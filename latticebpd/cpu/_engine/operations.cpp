#include "operations.hpp"

#include <algorithm>
#include <type_traits>

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // wrong for this header's undefined vectors (GCC's bug 105593)
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#include "weight_memory.hpp"

namespace engine {

#define ENGINE_ISA 0
namespace plain {
#include "operations.inc"
}

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#undef ENGINE_ISA
#define ENGINE_ISA 1
namespace avx2 {
#include "operations.inc"
}
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#undef ENGINE_ISA
#define ENGINE_ISA 2
namespace vnni {
#include "operations.inc"
}
#pragma GCC pop_options
#endif

std::vector<const Operations*> operations() {
    std::vector<const Operations*> supported;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        supported.push_back(&vnni::table);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        supported.push_back(&avx2::table);
#endif
    supported.push_back(&plain::table);
    return supported;
}

}  // namespace engine
