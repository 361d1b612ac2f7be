// y_TO = scale_O · (x_TI · q_OIᵀ) + bias_O, for integers |q| <= 127 packed once at loading.
//
// Layout: packed[o / 32][i / 2], 64 bytes each, padded with zeros: [o % 16 / 4][o / 16 % 2][o % 4][i % 2]
// bytes of sign (the top bit) and magnitude. A magnitude is an index into two tables of 128 bytes,
// the upper and the lower byte of its bfloat16; with the sign put back, interleaving the bytes gives
// the operands of two dot products. Nothing is rounded but the result.
#include "quantized.h"

namespace stepwire {
namespace {

constexpr int64_t kPairBytes = 2 * kOutputs;

// Where a block keeps an output's input, from the first byte of the pair.
int64_t place(int64_t lane, int64_t input) {
  return lane % 16 / 4 * 16 + lane / 16 * 8 + lane % 4 * 2 + input % 2;
}

#if STEPWIRE_X86
// The bytes of bfloat16 0 ... 127.
struct Tables {
  __m512i upper[2], lower[2];
};

TARGET_AVX512 Tables read_tables() {
  alignas(64) uint8_t upper[128], lower[128];
  for (int i = 0; i < 128; ++i) {
    const bf16 number = exact_bf16(i);
    upper[i] = static_cast<uint8_t>(number >> 8);
    lower[i] = static_cast<uint8_t>(number & 0xff);
  }
  return {{_mm512_load_si512(upper), _mm512_load_si512(upper + 64)},
          {_mm512_load_si512(lower), _mm512_load_si512(lower + 64)}};
}

// A pair of inputs of 32 outputs: of the first 16 and of the others.
struct Operands {
  __m512bh low, high;
};

TARGET_AVX512 inline Operands read_pair(const uint8_t* pair, const Tables& tables) {
  const __m512i q = _mm512_loadu_si512(pair);
  const __m512i magnitude = _mm512_permutex2var_epi8(tables.upper[0], q, tables.upper[1]);
  const __m512i lower = _mm512_permutex2var_epi8(tables.lower[0], q, tables.lower[1]);
  // magnitude | (q & the top bit)
  const __m512i upper =
      _mm512_ternarylogic_epi32(magnitude, q, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);
  return {(__m512bh)_mm512_unpacklo_epi8(lower, upper),
          (__m512bh)_mm512_unpackhi_epi8(lower, upper)};
}

// Sums of R rows and one block.
template <int R>
TARGET_AVX512 void sum_rows_avx512(const bf16* x, int64_t num_inputs, const uint8_t* block,
                                   float* sums) {
  const Tables tables = read_tables();
  __m512 low[R], high[R];
  for (int r = 0; r < R; ++r) low[r] = high[r] = _mm512_setzero_ps();
  for (int64_t i = 0; i < num_inputs; i += 2) {
    _mm_prefetch(block + i / 2 * kPairBytes + kAheadBytes, _MM_HINT_T0);
    const Operands w = read_pair(block + i / 2 * kPairBytes, tables);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      std::memcpy(&pair, x + r * num_inputs + i, sizeof(pair));
      const auto x_pair = (__m512bh)_mm512_set1_epi32(pair);
      low[r] = _mm512_dpbf16_ps(low[r], w.low, x_pair);
      high[r] = _mm512_dpbf16_ps(high[r], w.high, x_pair);
    }
  }
  for (int r = 0; r < R; ++r) {
    _mm512_storeu_ps(sums + r * kOutputs, low[r]);
    _mm512_storeu_ps(sums + r * kOutputs + 16, high[r]);
  }
}

// A pair of inputs of outputs [8 half, 8 half + 8), and of those 16 further.
struct Numbers {
  __m256 even[2], odd[2];
};

TARGET_AVX2 inline Numbers read_pair(const uint8_t* pair, int half) {
  const auto* const from = reinterpret_cast<const __m256i*>(pair + 32 * half);
  const __m256i w = _mm256_loadu_si256(from);
  const __m256i q = _mm256_sign_epi8(_mm256_and_si256(w, _mm256_set1_epi8(127)), w);
  const __m256i parts[2] = {_mm256_unpacklo_epi16(q, q), _mm256_unpackhi_epi16(q, q)};
  Numbers numbers;
  for (int part = 0; part < 2; ++part) {
    const __m256i even = _mm256_srai_epi32(_mm256_slli_epi32(parts[part], 24), 24);
    numbers.even[part] = _mm256_cvtepi32_ps(even);
    numbers.odd[part] = _mm256_cvtepi32_ps(_mm256_srai_epi32(parts[part], 24));
  }
  return numbers;
}

TARGET_AVX2 void sum_row_avx2(const float* x, int64_t num_inputs, const uint8_t* block,
                              float* sums) {
  __m256 sum[4];
  for (auto& part : sum) part = _mm256_setzero_ps();
  for (int64_t i = 0; i < num_inputs; i += 2) {
    _mm_prefetch(block + i / 2 * kPairBytes + kAheadBytes, _MM_HINT_T0);
    const __m256 even = _mm256_broadcast_ss(x + i), odd = _mm256_broadcast_ss(x + i + 1);
    for (int half = 0; half < 2; ++half) {
      const Numbers w = read_pair(block + i / 2 * kPairBytes, half);
      for (int part = 0; part < 2; ++part) {
        __m256& to = sum[2 * part + half];
        to = _mm256_fmadd_ps(w.even[part], even, to);
        to = _mm256_fmadd_ps(w.odd[part], odd, to);
      }
    }
  }
  for (int j = 0; j < 4; ++j) _mm256_storeu_ps(sums + 8 * j, sum[j]);
}

TARGET_AVX2 void unpack_avx2(const uint8_t* block, int64_t num_inputs, float* panel) {
  for (int64_t i = 0; i < num_inputs; i += 2) {
    for (int half = 0; half < 2; ++half) {
      const Numbers w = read_pair(block + i / 2 * kPairBytes, half);
      for (int part = 0; part < 2; ++part) {
        float* const to = panel + i * kOutputs + 16 * part + 8 * half;
        _mm256_storeu_ps(to, w.even[part]);
        _mm256_storeu_ps(to + kOutputs, w.odd[part]);
      }
    }
  }
}
#endif

}  // namespace

int64_t packed_size_int8(int64_t num_outputs, int64_t num_inputs) {
  return num_blocks(num_outputs) * kOutputs * padded(num_inputs);
}

void pack_int8(const int8_t* q_OI, uint8_t* packed, int64_t num_outputs, int64_t num_inputs) {
  const int64_t block_bytes = kOutputs * padded(num_inputs);
  parallel_for_runs(num_blocks(num_outputs), [&](int64_t block) {
    uint8_t* const to = packed + block * block_bytes;
    std::memset(to, 0, block_bytes);
    const int64_t width = std::min(kOutputs, num_outputs - block * kOutputs);
    for (int64_t lane = 0; lane < width; ++lane) {
      const int8_t* const from = q_OI + (block * kOutputs + lane) * num_inputs;
      for (int64_t i = 0; i < num_inputs; ++i) {
        const int q = from[i];
        to[i / 2 * kPairBytes + place(lane, i)] = static_cast<uint8_t>(q < 0 ? 0x80 - q : q);
      }
    }
  });
}

void linear_int8(bool is_x_bf16, const void* x_TI, const uint8_t* packed, const float* scale_O,
                 const float* bias_O, void* y_TO, bool is_y_float, int64_t num_rows,
                 int64_t num_inputs, int64_t num_outputs) {
#if STEPWIRE_X86
  static constexpr std::array kKernels{sum_rows_avx512<1>, sum_rows_avx512<2>, sum_rows_avx512<3>,
                                       sum_rows_avx512<4>, sum_rows_avx512<5>, sum_rows_avx512<6>,
                                       sum_rows_avx512<7>, sum_rows_avx512<8>};
  const Results results{y_TO, is_y_float, num_outputs, scale_O, bias_O};
  for_blocks(num_rows, num_outputs, [&](int64_t block, int64_t first, int64_t rows) {
    const uint8_t* const weights = packed + block * kOutputs * num_inputs;
    float sums[kTaskRows * kOutputs];
    if (is_x_bf16) {
      const bf16* const x = static_cast<const bf16*>(x_TI) + first * num_inputs;
      for_tiles(rows, kKernels.size(), [&](int64_t row, int64_t height) {
        kKernels[height - 1](x + row * num_inputs, num_inputs, weights, sums + row * kOutputs);
      });
    } else {
      const float* const x = static_cast<const float*>(x_TI) + first * num_inputs;
      if (rows == 1) {
        sum_row_avx2(x, num_inputs, weights, sums);
      } else {
        float* const panel = panel_room(num_inputs);
        unpack_avx2(weights, num_inputs, panel);
        sum_panel_avx2(x, rows, num_inputs, panel, sums);
      }
    }
    results.write(sums, first, rows, block);
  });
#endif
}

}  // namespace stepwire
