#include "operations.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <fst/refuse.hpp>

namespace engine {

namespace {

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports knows F16C.
bool has_f16c() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

std::vector<const Operations*> supported() {
    std::vector<const Operations*> all;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        all.push_back(&avx512_operations);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) all.push_back(&avx2_operations);
#endif
    all.push_back(&plain_operations);
    return all;
}

}  // namespace

bool reads_ahead() {
#if defined(__x86_64__)
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

const std::vector<const Operations*>& operations() {
    static const std::vector<const Operations*> all = supported();
    return all;
}

const Operations& operations(std::size_t isa) {
    if (isa >= operations().size())
        fst::refuse("expected the number of an instruction set below ", operations().size(), ", got ", isa);
    return *operations()[isa];
}

}  // namespace engine
