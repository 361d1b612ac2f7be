// The step's kernels for AVX2; nothing above the pragma is compiled for it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "isa.h"
#include "rows.h"
#include "step_kernels.h"
#include "threads.h"

#if STEPWIRE_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#endif
#define STEPWIRE_PAIRS 0

namespace stepwire::avx2 {
namespace {
using bf16 = uint16_t;
#include "vectors_avx2.inc"
}  // namespace
#include "step_kernels.inc"
}  // namespace stepwire::avx2

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
