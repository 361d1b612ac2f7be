// All decoder layers of a stage in one call, so that a step of a few rows does not wait for Python
// between kernels that take microseconds each. Everything is bfloat16.
//
//     h = h + output(attend(qkv(norm(h))))
//     h = h + down(silu(gate) * up),  gate, up = gate_up(norm(h))
//
// As in the layers of `models/decoder.py`, hidden states are held in two parts, which the next norm
// adds. T tokens, D model size.
#include "decoder_layers.h"

#include "attention_step.h"
#include "cache_ahead.h"
#include "kernels.h"
#include "linear_bf16.h"

namespace stepwire {
namespace {

int64_t work(const LinearWeight& weight) { return weight.num_inputs * weight.num_outputs; }

void multiply(const LinearWeight& weight, const void* x_TI, void* y_TO, int64_t num_tokens,
              CacheAhead& ahead) {
  const AheadPieces cache = ahead.next(work(weight));
  switch (weight.kind) {
    case WeightKind::kBf16:
      return linear_bf16_ahead(static_cast<const bf16*>(x_TI),
                               static_cast<const bf16*>(weight.packed),
                               static_cast<const bf16*>(weight.bias_O), y_TO, false, num_tokens,
                               weight.num_inputs, weight.num_outputs, cache);
    case WeightKind::kInt8:
      return linear_int8(true, x_TI, static_cast<const uint8_t*>(weight.packed), weight.scale_O,
                         static_cast<const float*>(weight.bias_O), y_TO, false, num_tokens,
                         weight.num_inputs, weight.num_outputs);
    case WeightKind::kInt4:
      return linear_int4(true, x_TI, static_cast<const uint8_t*>(weight.packed),
                         static_cast<const float*>(weight.bias_O), y_TO, false, num_tokens,
                         weight.num_inputs, weight.num_outputs);
  }
}

}  // namespace

void run_decoder_layers(const DecoderLayer* layers, int64_t num_layers, const AttentionStep* step,
                        void* const* keys_and_values, void* hidden_TD, void* added_TD,
                        void* residual_TD, bf16* room, int64_t num_tokens, float eps) {
  CacheAhead ahead(*step);
  ahead.begin(keys_and_values[0], keys_and_values[1], work(layers[0].qkv));
  for (int64_t index = 0; index < num_layers; ++index) {
    const DecoderLayer& layer = layers[index];
    const bool is_last = index + 1 == num_layers;
    const int64_t size = layer.qkv.num_inputs;
    bf16* const normed_TD = room;
    bf16* const wide = normed_TD + num_tokens * size;
    bf16* const attended = wide + num_tokens * layer.qkv.num_outputs;
    bf16* const gated = wide + num_tokens * layer.gate_up.num_outputs;
    void* const before_TD = index == 0 ? hidden_TD : added_TD;

    rms_norm(true, before_TD, index == 0 ? nullptr : residual_TD, layer.attention_norm_D, normed_TD,
             num_tokens, size, eps);
    multiply(layer.qkv, normed_TD, wide, num_tokens, ahead);
    attend(step, wide, keys_and_values[2 * index], keys_and_values[2 * index + 1], attended);
    if (is_last)
      ahead.end();
    else
      ahead.begin(keys_and_values[2 * index + 2], keys_and_values[2 * index + 3],
                  work(layer.output) + work(layer.gate_up) + work(layer.down) +
                      work(layers[index + 1].qkv));
    multiply(layer.output, attended, residual_TD, num_tokens, ahead);

    rms_norm(true, residual_TD, before_TD, layer.mlp_norm_D, normed_TD, num_tokens, size, eps);
    multiply(layer.gate_up, normed_TD, wide, num_tokens, ahead);
    silu_and_multiply(true, wide, gated, num_tokens, layer.down.num_inputs);
    multiply(layer.down, gated, added_TD, num_tokens, ahead);
  }
}

}  // namespace stepwire
