// Which instruction set the kernels use: the best this machine has, chosen once at run time.
//
// A kernel is compiled for each set by a target attribute, so one build serves every x86 machine.
// Machines with neither set (or another architecture) have no native kernels.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#define STEPWIRE_X86 1
#include <immintrin.h>
#define TARGET_AVX2 __attribute__((target("avx2,fma,f16c,bmi,bmi2")))
#define TARGET_AVX512 \
  __attribute__((target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16")))
#else
#define STEPWIRE_X86 0
#endif

namespace stepwire {

enum class Isa { kNone = 0, kAvx2 = 1, kAvx512Bf16 = 2 };

// The set in use; kernels dispatch on it.
Isa isa();

// Uses a lesser set than the machine has, for tests; false when the machine lacks it.
bool use_isa(Isa wanted);

}  // namespace stepwire
