#include "quantized.h"

#include <vector>

namespace stepwire {
namespace {

// Rounds to nearest, ties to even; NaN stays NaN.
bf16 round_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<bf16>(is_nan ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

void Results::write(const float* sums, int64_t first_row, int64_t num_rows, int64_t block) const {
  const int64_t first = block * kOutputs;
  const int64_t width = std::min(kOutputs, num_outputs - first);
  for (int64_t row = 0; row < num_rows; ++row) {
    float values[kOutputs];
    std::copy_n(sums + row * kOutputs, kOutputs, values);
    if (scale != nullptr)
      for (int64_t lane = 0; lane < width; ++lane) values[lane] *= scale[first + lane];
    if (bias != nullptr)
      for (int64_t lane = 0; lane < width; ++lane) values[lane] += bias[first + lane];
    const int64_t offset = (first_row + row) * num_outputs + first;
    if (is_float)
      std::copy_n(values, width, static_cast<float*>(y) + offset);
    else
      std::transform(values, values + width, static_cast<bf16*>(y) + offset, round_to_bf16);
  }
}

float* panel_room(int64_t num_inputs) {
  thread_local std::vector<float> room;
  room.resize(std::max<size_t>(room.size(), kOutputs * num_inputs));
  return room.data();
}

#if STEPWIRE_X86
namespace {

// R rows, whose sums stay in four registers each.
template <int R>
TARGET_AVX2 void sum_rows_avx2(const float* x, int64_t num_inputs, const float* panel,
                               float* sums) {
  __m256 part[R][4];
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < 4; ++j) part[r][j] = _mm256_setzero_ps();
  for (int64_t i = 0; i < num_inputs; ++i) {
    const float* const w = panel + i * kOutputs;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256 x_i = _mm256_broadcast_ss(x + r * num_inputs + i);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
        part[r][j] = _mm256_fmadd_ps(_mm256_loadu_ps(w + 8 * j), x_i, part[r][j]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < 4; ++j) _mm256_storeu_ps(sums + r * kOutputs + 8 * j, part[r][j]);
}

}  // namespace

void sum_panel_avx2(const float* x, int64_t num_rows, int64_t num_inputs, const float* panel,
                    float* sums) {
  static constexpr std::array kKernels{sum_rows_avx2<1>, sum_rows_avx2<2>, sum_rows_avx2<3>};
  for_tiles(num_rows, kKernels.size(), [&](int64_t row, int64_t height) {
    kKernels[height - 1](x + row * num_inputs, num_inputs, panel, sums + row * kOutputs);
  });
}
#endif

}  // namespace stepwire
