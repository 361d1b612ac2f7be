// What surrounds the linear layers in a step, compiled once for each instruction set.
// is_bf16 says what all elements are, else they are float32.
#pragma once

#include <cstdint>

#include "attention_step.h"

#define STEPWIRE_STEP_KERNELS                                                                  \
  void rms_norm(bool is_bf16, void* x_TD, const void* residual_TD, const void* weight_D,       \
                void* out_TD, int64_t num_tokens, int64_t size, float eps);                    \
  void silu_and_multiply(bool is_bf16, const void* gate_up_T2I, void* out_TI,                  \
                         int64_t num_tokens, int64_t size);                                    \
  void attend(const AttentionStep* step, const void* qkv_THD, void* keys_KSD, void* values_KSD, \
              void* out_TND);                                                                  \
  bool greedy(bool is_bf16, const void* logits_SV, int64_t num_rows, int64_t vocabulary,       \
              int32_t* tokens_S);                                                              \
  void draw(const float* logits_RV, const float* temperature_R, const float* min_p_R,          \
            const int64_t* seeds_R, const int64_t* positions_R, int64_t num_rows,              \
            int64_t vocabulary, int32_t* tokens_R);

namespace stepwire {

// A token and its logit, and whether all logits it was chosen from are finite.
struct Best {
  float value;
  int32_t token;
  bool is_finite;
};

}  // namespace stepwire
namespace stepwire::avx2 {
STEPWIRE_STEP_KERNELS
}
namespace stepwire::avx512 {
STEPWIRE_STEP_KERNELS
}
