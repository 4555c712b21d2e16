#include "operations.hpp"

#include <algorithm>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "weight_memory.hpp"

namespace engine {

constexpr std::size_t kLanes = 16;
typedef float Lanes __attribute__((vector_size(64), aligned(4), may_alias));
typedef std::int32_t IntLanes __attribute__((vector_size(64)));

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
