#include "isa.h"

namespace stepwire {
namespace {

Isa best_isa() {
#if STEPWIRE_X86
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::kNone;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16"))
    return Isa::kAvx512Bf16;
  return Isa::kAvx2;
#else
  return Isa::kNone;
#endif
}

Isa chosen = best_isa();

}  // namespace

Isa isa() { return chosen; }

bool use_isa(Isa wanted) {
  if (wanted > best_isa()) return false;
  chosen = wanted;
  return true;
}

}  // namespace stepwire
