// Every kernel Python may call: arguments are addresses of dense arrays and their sizes.
#pragma once

#include <cstdint>

#include "attention_step.h"
#include "decoder_layers.h"

namespace stepwire {

using bf16 = uint16_t;

// linear_bf16.cpp
int64_t packed_size_bf16(int64_t num_outputs, int64_t num_inputs);
void pack_bf16(const bf16* w_OI, bf16* packed, int64_t num_outputs, int64_t num_inputs);
void linear_bf16(const bf16* x_TI, const bf16* packed, const bf16* bias_O, void* y_TO,
                 bool is_y_float, int64_t num_rows, int64_t num_inputs, int64_t num_outputs);

// linear_int8.cpp; x is bfloat16 (with AVX-512) or float32, padded with zeros to whole 32 inputs,
// which num_inputs counts for linear_int8 and linear_int4. Integers are of -127 ... 127.
int64_t packed_size_int8(int64_t num_outputs, int64_t num_inputs);
void pack_int8(const int8_t* q_OI, uint8_t* packed, int64_t num_outputs, int64_t num_inputs);
void linear_int8(bool is_x_bf16, const void* x_TI, const uint8_t* packed, const float* scale_O,
                 const float* bias_O, void* y_TO, bool is_y_float, int64_t num_rows,
                 int64_t num_inputs, int64_t num_outputs);

// linear_int4.cpp; integers are of 0 ... 15, G counts groups of 32 inputs.
int64_t packed_size_int4(int64_t num_outputs, int64_t num_inputs);
void pack_int4(const uint8_t* q_OI, const bf16* scale_OG, const bf16* center_OG, uint8_t* packed,
               int64_t num_outputs, int64_t num_inputs);
void linear_int4(bool is_x_bf16, const void* x_TI, const uint8_t* packed, const float* bias_O,
                 void* y_TO, bool is_y_float, int64_t num_rows, int64_t num_inputs,
                 int64_t num_outputs);

// step_kernels.cpp; is_bf16 says what all elements are, else they are float32.
void rms_norm(bool is_bf16, void* x_TD, const void* residual_TD, const void* weight_D, void* out_TD,
              int64_t num_tokens, int64_t size, float eps);
void silu_and_multiply(bool is_bf16, const void* gate_up_T2I, void* out_TI, int64_t num_tokens,
                       int64_t size);
void attend(const AttentionStep* step, const void* qkv_THD, void* keys_KSD, void* values_KSD,
            void* out_TND);
bool greedy(bool is_bf16, const void* logits_SV, int64_t num_rows, int64_t vocabulary,
            int32_t* tokens_S);
void draw(const float* logits_RV, const float* temperature_R, const float* min_p_R,
          const int64_t* seeds_R, const int64_t* positions_R, int64_t num_rows, int64_t vocabulary,
          int32_t* tokens_R);

// decoder_layers.cpp; keys and values are pairs, one a layer. hidden is left alone, and the layers'
// result is added + residual. There is room for T rows of the model size and the widest two of
// qkv + attended and gate_up + gated.
void run_decoder_layers(const DecoderLayer* layers, int64_t num_layers, const AttentionStep* step,
                        void* const* keys_and_values, void* hidden_TD, void* added_TD,
                        void* residual_TD, bf16* room, int64_t num_tokens, float eps);

}  // namespace stepwire
