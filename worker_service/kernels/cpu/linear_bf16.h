// linear_bf16 as other kernels call it: with something to ask memory for meanwhile.
#pragma once

#include <cstdint>

#include "cache_ahead.h"
#include "kernels.h"

namespace stepwire {

void linear_bf16_ahead(const bf16* x_TI, const bf16* packed, const bf16* bias_O, void* y_TO,
                       bool is_y_float, int64_t num_rows, int64_t num_inputs, int64_t num_outputs,
                       const AheadPieces& cache);

}  // namespace stepwire
