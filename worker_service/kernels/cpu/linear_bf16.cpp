// y_TO = x_TI · w_OIᵀ + bias_O in bfloat16 with float32 sums, for weights packed once at loading.
//
// Layout: outputs in blocks of B = 32, inputs in pairs: packed[o / B][i / 2][o % B][i % 2], padded
// with zeros. One block is one sequential stream of memory, and 16 outputs of a pair of inputs are
// one register of the AVX-512 dot product (two of AVX2).
#include <cstring>

#include "isa.h"
#include "kernels.h"
#include "threads.h"

namespace stepwire {
namespace {

constexpr int64_t kBlock = 32;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

int64_t packed_size_bf16(int64_t num_outputs, int64_t num_inputs) {
  return divide_up(num_outputs, kBlock) * kBlock * divide_up(num_inputs, 2) * 2;
}

void pack_bf16(const bf16* w_OI, bf16* packed, int64_t num_outputs, int64_t num_inputs) {
  const int64_t num_pairs = divide_up(num_inputs, 2);
  parallel_for(divide_up(num_outputs, kBlock), [&](int64_t block) {
    bf16* const to = packed + block * kBlock * num_pairs * 2;
    std::memset(to, 0, sizeof(bf16) * kBlock * num_pairs * 2);
    for (int64_t lane = 0; lane < kBlock && block * kBlock + lane < num_outputs; ++lane) {
      const bf16* const from = w_OI + (block * kBlock + lane) * num_inputs;
      for (int64_t i = 0; i < num_inputs; ++i)
        to[(i / 2 * kBlock + lane) * 2 + i % 2] = from[i];
    }
  });
}

}  // namespace stepwire
