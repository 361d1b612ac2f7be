// linear_bf16 as other kernels call it: with something to ask memory for meanwhile, or with a gate.
#pragma once

#include <cstdint>

#include "cache_ahead.h"
#include "kernels.h"

namespace stepwire {

void linear_bf16_ahead(const bf16* x_TI, const bf16* packed, const bf16* bias_O, void* y_TO,
                       bool is_y_float, int64_t num_rows, int64_t num_inputs, int64_t num_outputs,
                       const AheadPieces& cache);

// silu(gate) * up of a weight whose first half of outputs are gates, the other half what they gate:
// the bits of the linear layer and silu_and_multiply, without writing the linear layer's outputs.
bool can_gate_bf16(int64_t num_rows, int64_t num_outputs);
void gated_bf16_ahead(const bf16* x_TI, const bf16* packed, const bf16* bias_O, bf16* y_TI,
                      int64_t num_rows, int64_t num_inputs, int64_t num_outputs,
                      const AheadPieces& cache);

}  // namespace stepwire
