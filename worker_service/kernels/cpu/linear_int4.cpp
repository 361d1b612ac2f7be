// y_TO = x_TI · w_OIᵀ + bias_O for w = scale · (q - 8) + center: 4-bit integers q, and in bfloat16 a
// scale and a center for each output's groups of 32 inputs; packed once at loading.
//
// Layout: packed[o / 32][i / 32], each 512 bytes of integers, 32 scales and 32 centers. 64 bytes of
// integers are two pairs of inputs of 32 outputs: [o % 16][i % 2] words of 4 halves, low to high
// [i / 2 % 2][o / 16 % 2]. So the same half of every word makes one operand of a dot product, and a
// table in a register turns it into bfloat16.
//
// Sums over a group are exact in q: y += scale · sum(x (q - 8)) + center · sum(x).
#include <vector>

#include "quantized.h"

namespace stepwire {
namespace {

constexpr int64_t kGroupCodes = kInputs * kOutputs / 2;
constexpr int64_t kGroupBytes = kGroupCodes + 2 * kOutputs * sizeof(bf16);

int64_t num_groups(int64_t num_inputs) { return padded(num_inputs) / kInputs; }

#if STEPWIRE_X86
// bfloat16 of q - 8, twice: of the five bits of an index into it the highest does not count.
TARGET_AVX512 __m512i code_table() {
  alignas(64) bf16 entries[32];
  for (int i = 0; i < 32; ++i) entries[i] = exact_bf16(i % 16 - 8);
  return _mm512_load_si512(entries);
}

struct Wide {
  __m512 low, high;
};

// 32 bfloat16 numbers as float32.
TARGET_AVX512 Wide widen_avx512(const uint8_t* numbers) {
  const __m512i all = _mm512_loadu_si512(numbers);
  const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(all));
  const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(all, 1));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(low, 16)),
          _mm512_castsi512_ps(_mm512_slli_epi32(high, 16))};
}

// Sums of R rows and one block; group_sums[row][group] are the sums of x.
template <int R>
TARGET_AVX512 void sum_rows_avx512(const bf16* x, const float* group_sums, int64_t num_inputs,
                                   const uint8_t* block, float* sums) {
  const __m512i numbers = code_table();
  const int64_t groups = num_groups(num_inputs);
  std::fill_n(sums, R * kOutputs, 0.0f);
  for (int64_t group = 0; group < groups; ++group, block += kGroupBytes) {
    __m512 part_low[R], part_high[R];
    for (int r = 0; r < R; ++r) part_low[r] = part_high[r] = _mm512_setzero_ps();
    for (int quad = 0; quad < kInputs / 4; ++quad) {
      _mm_prefetch(block + 64 * quad + kAheadBytes, _MM_HINT_T0);
      const __m512i q = _mm512_loadu_si512(block + 64 * quad);
      __m512bh w[4];
      w[0] = (__m512bh)_mm512_permutexvar_epi16(q, numbers);
      w[1] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(q, 4), numbers);
      w[2] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(q, 8), numbers);
      w[3] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(q, 12), numbers);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        int32_t pairs[2];
        std::memcpy(pairs, x + r * num_inputs + group * kInputs + 4 * quad, sizeof(pairs));
        const auto first = (__m512bh)_mm512_set1_epi32(pairs[0]);
        const auto second = (__m512bh)_mm512_set1_epi32(pairs[1]);
        part_low[r] = _mm512_dpbf16_ps(part_low[r], w[0], first);
        part_high[r] = _mm512_dpbf16_ps(part_high[r], w[1], first);
        part_low[r] = _mm512_dpbf16_ps(part_low[r], w[2], second);
        part_high[r] = _mm512_dpbf16_ps(part_high[r], w[3], second);
      }
    }
    const Wide scale = widen_avx512(block + kGroupCodes);
    const Wide center = widen_avx512(block + kGroupCodes + sizeof(bf16) * kOutputs);
    for (int r = 0; r < R; ++r) {
      const __m512 x_sum = _mm512_set1_ps(group_sums[r * groups + group]);
      float* const to = sums + r * kOutputs;
      __m512 low = _mm512_fmadd_ps(x_sum, center.low, _mm512_loadu_ps(to));
      __m512 high = _mm512_fmadd_ps(x_sum, center.high, _mm512_loadu_ps(to + 16));
      _mm512_storeu_ps(to, _mm512_fmadd_ps(part_low[r], scale.low, low));
      _mm512_storeu_ps(to + 16, _mm512_fmadd_ps(part_high[r], scale.high, high));
    }
  }
}

// 8 bfloat16 numbers as float32.
TARGET_AVX2 __m256 widen_avx2(const uint8_t* numbers) {
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}

// The integers at one place of every lane, as float32.
template <int Shift>
TARGET_AVX2 __m256 codes(__m256i lanes) {
  const __m256i code = _mm256_and_si256(_mm256_srli_epi32(lanes, Shift), _mm256_set1_epi32(15));
  return _mm256_cvtepi32_ps(code);
}

struct Group {
  __m256 scale[4], offset[4];
};

// Scales of 32 outputs, and what stands for q = 0.
TARGET_AVX2 Group read_group(const uint8_t* group) {
  Group read;
  for (int j = 0; j < 4; ++j) {
    read.scale[j] = widen_avx2(group + kGroupCodes + 16 * j);
    const __m256 center = widen_avx2(group + kGroupCodes + sizeof(bf16) * kOutputs + 16 * j);
    read.offset[j] = _mm256_fnmadd_ps(_mm256_set1_ps(8), read.scale[j], center);
  }
  return read;
}

TARGET_AVX2 void sum_row_avx2(const float* x, const float* group_sums, int64_t num_inputs,
                              const uint8_t* block, float* sums) {
  __m256 total[4];
  for (auto& sum : total) sum = _mm256_setzero_ps();
  for (int64_t group = 0; group < num_groups(num_inputs); ++group, block += kGroupBytes) {
    __m256 part[4];
    for (auto& sum : part) sum = _mm256_setzero_ps();
    const float* x_i = x + group * kInputs;
    for (int quad = 0; quad < kInputs / 4; ++quad, x_i += 4) {
      for (int half = 0; half < 2; ++half) {
        const auto* const from = block + 64 * quad + 32 * half;
        const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        __m256 &a = part[half], &b = part[2 + half];
        a = _mm256_fmadd_ps(codes<0>(q), _mm256_broadcast_ss(x_i), a);
        b = _mm256_fmadd_ps(codes<4>(q), _mm256_broadcast_ss(x_i), b);
        a = _mm256_fmadd_ps(codes<16>(q), _mm256_broadcast_ss(x_i + 1), a);
        b = _mm256_fmadd_ps(codes<20>(q), _mm256_broadcast_ss(x_i + 1), b);
        a = _mm256_fmadd_ps(codes<8>(q), _mm256_broadcast_ss(x_i + 2), a);
        b = _mm256_fmadd_ps(codes<12>(q), _mm256_broadcast_ss(x_i + 2), b);
        a = _mm256_fmadd_ps(codes<24>(q), _mm256_broadcast_ss(x_i + 3), a);
        b = _mm256_fmadd_ps(codes<28>(q), _mm256_broadcast_ss(x_i + 3), b);
      }
    }
    const Group read = read_group(block);
    const __m256 x_sum = _mm256_broadcast_ss(group_sums + group);
    for (int j = 0; j < 4; ++j) {
      total[j] = _mm256_fmadd_ps(part[j], read.scale[j], total[j]);
      total[j] = _mm256_fmadd_ps(x_sum, read.offset[j], total[j]);
    }
  }
  for (int j = 0; j < 4; ++j) _mm256_storeu_ps(sums + 8 * j, total[j]);
}

TARGET_AVX2 void unpack_avx2(const uint8_t* block, int64_t num_inputs, float* panel) {
  for (int64_t group = 0; group < num_groups(num_inputs); ++group, block += kGroupBytes) {
    const Group read = read_group(block);
    for (int quad = 0; quad < kInputs / 4; ++quad, panel += 4 * kOutputs) {
      for (int half = 0; half < 2; ++half) {
        const auto* const from = block + 64 * quad + 32 * half;
        const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        const __m256 values[4][2] = {{codes<0>(q), codes<4>(q)},
                                     {codes<16>(q), codes<20>(q)},
                                     {codes<8>(q), codes<12>(q)},
                                     {codes<24>(q), codes<28>(q)}};
        for (int i = 0; i < 4; ++i)
          for (int part = 0; part < 2; ++part) {
            const int j = 2 * part + half;
            _mm256_storeu_ps(panel + i * kOutputs + 8 * j,
                             _mm256_fmadd_ps(values[i][part], read.scale[j], read.offset[j]));
          }
      }
    }
  }
}
#endif

float to_float(bf16 value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

float to_float(float value) { return value; }

// Sums of each row's groups; they last until the thread's next call.
template <typename X>
const float* sum_groups(const X* x_TI, int64_t num_rows, int64_t num_inputs) {
  thread_local std::vector<float> room;
  const int64_t groups = num_groups(num_inputs);
  room.resize(std::max<size_t>(room.size(), num_rows * groups));
  float* const sums = room.data();
  parallel_for(num_rows, [&](int64_t row) {
    for (int64_t group = 0; group < groups; ++group) {
      const X* const x = x_TI + row * num_inputs + group * kInputs;
      float lanes[8] = {};
      for (int i = 0; i < kInputs; ++i) lanes[i % 8] += to_float(x[i]);
      float sum = 0;
      for (const float lane : lanes) sum += lane;
      sums[row * groups + group] = sum;
    }
  });
  return sums;
}

}  // namespace

int64_t packed_size_int4(int64_t num_outputs, int64_t num_inputs) {
  return num_blocks(num_outputs) * num_groups(num_inputs) * kGroupBytes;
}

void pack_int4(const uint8_t* q_OI, const bf16* scale_OG, const bf16* center_OG, uint8_t* packed,
               int64_t num_outputs, int64_t num_inputs) {
  const int64_t groups = num_groups(num_inputs);
  parallel_for(num_blocks(num_outputs), [&](int64_t block) {
    uint8_t* const to = packed + block * groups * kGroupBytes;
    std::memset(to, 0, groups * kGroupBytes);
    const int64_t width = std::min(kOutputs, num_outputs - block * kOutputs);
    for (int64_t lane = 0; lane < width; ++lane) {
      const int64_t output = block * kOutputs + lane;
      for (int64_t i = 0; i < num_inputs; ++i) {
        const int64_t half = i / 2 % 2 * 2 + lane / 16;
        uint8_t* const codes = to + i / kInputs * kGroupBytes + i % kInputs / 4 * 64;
        codes[lane % 16 * 4 + i % 2 * 2 + half / 2] |= q_OI[output * num_inputs + i] << half % 2 * 4;
      }
      for (int64_t group = 0; group < groups; ++group) {
        uint8_t* const numbers = to + group * kGroupBytes + kGroupCodes + lane * sizeof(bf16);
        std::memcpy(numbers, scale_OG + output * groups + group, sizeof(bf16));
        std::memcpy(numbers + kOutputs * sizeof(bf16), center_OG + output * groups + group,
                    sizeof(bf16));
      }
    }
  });
}

void linear_int4(bool is_x_bf16, const void* x_TI, const uint8_t* packed, const float* bias_O,
                 void* y_TO, bool is_y_float, int64_t num_rows, int64_t num_inputs,
                 int64_t num_outputs) {
#if STEPWIRE_X86
  static constexpr std::array kKernels{sum_rows_avx512<1>, sum_rows_avx512<2>, sum_rows_avx512<3>,
                                       sum_rows_avx512<4>, sum_rows_avx512<5>, sum_rows_avx512<6>,
                                       sum_rows_avx512<7>, sum_rows_avx512<8>};
  const int64_t groups = num_groups(num_inputs);
  const bf16* const narrow_TI = static_cast<const bf16*>(x_TI);
  const float* const wide_TI = static_cast<const float*>(x_TI);
  const float* const group_sums = is_x_bf16 ? sum_groups(narrow_TI, num_rows, num_inputs)
                                            : sum_groups(wide_TI, num_rows, num_inputs);
  const Results results{y_TO, is_y_float, num_outputs, nullptr, bias_O};
  for_blocks(num_rows, num_outputs, [&](int64_t block, int64_t first, int64_t rows) {
    const uint8_t* const weights = packed + block * groups * kGroupBytes;
    float sums[kTaskRows * kOutputs];
    if (is_x_bf16) {
      for_tiles(rows, kKernels.size(), [&](int64_t row, int64_t height) {
        kKernels[height - 1](narrow_TI + (first + row) * num_inputs,
                             group_sums + (first + row) * groups, num_inputs, weights,
                             sums + row * kOutputs);
      });
    } else if (rows == 1) {
      sum_row_avx2(wide_TI + first * num_inputs, group_sums + first * groups, num_inputs, weights,
                   sums);
    } else {
      float* const panel = panel_room(num_inputs);
      unpack_avx2(weights, num_inputs, panel);
      sum_panel_avx2(wide_TI + first * num_inputs, rows, num_inputs, panel, sums);
    }
    results.write(sums, first, rows, block);
  });
#endif
}

}  // namespace stepwire
