// What a stage's decoder layers are made of, as 64-bit fields in the order Python packs them.
#pragma once

#include <cstdint>

namespace stepwire {

// Which kernel multiplies by a weight.
enum class WeightKind : int64_t { kBf16 = 0, kInt8 = 1, kInt4 = 2 };

struct LinearWeight {
  WeightKind kind;
  const void* packed;
  const float* scale_O;  // of int8 alone
  const void* bias_O;    // bfloat16, beside integers float32; may be null
  int64_t num_inputs;
  int64_t num_outputs;
};

struct DecoderLayer {
  const void* attention_norm_D;
  const void* mlp_norm_D;
  LinearWeight qkv, output, gate_up, down;
};

}  // namespace stepwire
