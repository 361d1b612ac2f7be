#include "step_kernels.h"

#include "isa.h"
#include "kernels.h"

namespace stepwire {
#if STEPWIRE_X86

void rms_norm(bool is_bf16, void* x_TD, const void* residual_TD, const void* weight_D, void* out_TD,
              int64_t num_tokens, int64_t size, float eps) {
  const auto run = isa() == Isa::kAvx512Bf16 ? avx512::rms_norm : avx2::rms_norm;
  run(is_bf16, x_TD, residual_TD, weight_D, out_TD, num_tokens, size, eps);
}

void silu_and_multiply(bool is_bf16, const void* gate_up_T2I, void* out_TI, int64_t num_tokens,
                       int64_t size) {
  const auto run =
      isa() == Isa::kAvx512Bf16 ? avx512::silu_and_multiply : avx2::silu_and_multiply;
  run(is_bf16, gate_up_T2I, out_TI, num_tokens, size);
}

void attend(const AttentionStep* step, const void* qkv_THD, void* keys_KSD, void* values_KSD,
            void* out_TND) {
  const auto run = isa() == Isa::kAvx512Bf16 ? avx512::attend : avx2::attend;
  run(step, qkv_THD, keys_KSD, values_KSD, out_TND);
}

bool greedy(bool is_bf16, const void* logits_SV, int64_t num_rows, int64_t vocabulary,
            int32_t* tokens_S) {
  const auto run = isa() == Isa::kAvx512Bf16 ? avx512::greedy : avx2::greedy;
  return run(is_bf16, logits_SV, num_rows, vocabulary, tokens_S);
}

void draw(const float* logits_RV, const float* temperature_R, const float* min_p_R,
          const int64_t* seeds_R, const int64_t* positions_R, int64_t num_rows, int64_t vocabulary,
          int32_t* tokens_R) {
  const auto run = isa() == Isa::kAvx512Bf16 ? avx512::draw : avx2::draw;
  run(logits_RV, temperature_R, min_p_R, seeds_R, positions_R, num_rows, vocabulary, tokens_R);
}

#endif
}  // namespace stepwire
