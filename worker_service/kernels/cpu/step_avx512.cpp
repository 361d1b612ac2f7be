// The step's kernels for AVX-512 with bfloat16; nothing above the pragma is compiled for it.
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
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#endif
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own headers build "undefined" registers from themselves.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#define STEPWIRE_PAIRS 1

namespace stepwire::avx512 {
namespace {
using bf16 = uint16_t;
#include "vectors_avx512.inc"
}  // namespace
#include "step_kernels.inc"
}  // namespace stepwire::avx512

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
