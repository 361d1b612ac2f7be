// Every kernel Python may call: arguments are addresses of dense arrays and their sizes.
#pragma once

#include <cstdint>

namespace stepwire {

using bf16 = uint16_t;

// linear_bf16.cpp
int64_t packed_size_bf16(int64_t num_outputs, int64_t num_inputs);
void pack_bf16(const bf16* w_OI, bf16* packed, int64_t num_outputs, int64_t num_inputs);
void linear_bf16(const bf16* x_TI, const bf16* packed, const bf16* bias_O, void* y_TO,
                 bool is_y_float, int64_t num_rows, int64_t num_inputs, int64_t num_outputs);

}  // namespace stepwire
