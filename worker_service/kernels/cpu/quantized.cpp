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

void* aligned_room(int64_t num_bytes) {
  constexpr int64_t kLine = 64;
  thread_local std::vector<uint8_t> room;
  room.resize(std::max<size_t>(room.size(), num_bytes + kLine));
  const auto address = reinterpret_cast<uintptr_t>(room.data());
  return reinterpret_cast<void*>((address + kLine - 1) / kLine * kLine);
}

#if STEPWIRE_X86
namespace {

// R rows, whose sums stay in two registers each.
template <int R>
TARGET_AVX512 void sum_rows_avx512(const bf16* x, int64_t num_inputs, const bf16* panel,
                                   float* sums) {
  __m512 low[R], high[R];
  for (int r = 0; r < R; ++r) low[r] = high[r] = _mm512_setzero_ps();
  for (int64_t i = 0; i < num_inputs; i += 2) {
    const auto w_low = (__m512bh)_mm512_loadu_si512(panel + i * kOutputs);
    const auto w_high = (__m512bh)_mm512_loadu_si512(panel + i * kOutputs + 32);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      std::memcpy(&pair, x + r * num_inputs + i, sizeof(pair));
      const auto x_pair = (__m512bh)_mm512_set1_epi32(pair);
      low[r] = _mm512_dpbf16_ps(low[r], w_low, x_pair);
      high[r] = _mm512_dpbf16_ps(high[r], w_high, x_pair);
    }
  }
  for (int r = 0; r < R; ++r) {
    _mm512_storeu_ps(sums + r * kOutputs, low[r]);
    _mm512_storeu_ps(sums + r * kOutputs + 16, high[r]);
  }
}

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

// Runs the kernel for as many rows at once as there are kernels, then for the rest.
template <typename X, typename Kernels>
void sum_rows(const X* x, int64_t num_rows, int64_t num_inputs, const X* panel, float* sums,
              const Kernels& kernels) {
  const int64_t most = kernels.size();
  for (int64_t row = 0; row < num_rows; row += most) {
    const int64_t rows = std::min(most, num_rows - row);
    kernels[rows - 1](x + row * num_inputs, num_inputs, panel, sums + row * kOutputs);
  }
}

}  // namespace

void sum_panel_avx512(const bf16* x, int64_t num_rows, int64_t num_inputs, const bf16* panel,
                      float* sums) {
  static constexpr std::array kKernels{
      sum_rows_avx512<1>, sum_rows_avx512<2>,  sum_rows_avx512<3>,  sum_rows_avx512<4>,
      sum_rows_avx512<5>, sum_rows_avx512<6>,  sum_rows_avx512<7>,  sum_rows_avx512<8>,
      sum_rows_avx512<9>, sum_rows_avx512<10>, sum_rows_avx512<11>, sum_rows_avx512<12>};
  sum_rows(x, num_rows, num_inputs, panel, sums, kKernels);
}

void sum_panel_avx2(const float* x, int64_t num_rows, int64_t num_inputs, const float* panel,
                    float* sums) {
  static constexpr std::array kKernels{sum_rows_avx2<1>, sum_rows_avx2<2>, sum_rows_avx2<3>};
  sum_rows(x, num_rows, num_inputs, panel, sums, kKernels);
}
#endif

}  // namespace stepwire
