// y_TO = x_TI · w_OIᵀ + bias_O in bfloat16 with float32 sums, for weights packed once at loading.
//
// Layout: outputs in blocks of 48, inputs in pairs: packed[o / 48][i / 2][o % 48][i % 2], padded with
// zeros. A block is one sequential stream of memory, and 16 outputs of a pair of inputs are one
// register of the AVX-512 dot product (two of AVX2, which shifts the halves into float32).
//
// A task is a block: it goes over all rows, a tile of a few rows at a time, so the weights come from
// memory once and from the L2 cache for every further tile. Meanwhile each tile fetches its share of
// the next block, so that memory never waits for arithmetic. Inputs are cut where a block would not
// fit into the cache. T rows, I inputs, O outputs.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cache_ahead.h"
#include "isa.h"
#include "kernels.h"
#include "linear_bf16.h"
#include "threads.h"

namespace stepwire {
namespace {

constexpr int64_t kBlock = 48;
constexpr int64_t kChunkRows = 64;     // whose sums are held while the inputs are cut
constexpr int64_t kChunkPairs = 2048;  // 48 outputs of so many pairs take 384 KiB
constexpr int64_t kPairBytes = kBlock * 2 * sizeof(bf16);
constexpr int64_t kAheadBytes = 6144;  // how far a single tile fetches ahead of itself

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Linear {
  const void* x_TI;  // bfloat16, or float32 for AVX2; rows end with a whole pair
  const bf16* packed;
  const bf16* bias_O;
  void* y_TO;
  bool is_y_float;
  int64_t num_rows, num_inputs, num_outputs;  // num_inputs is even
  AheadPieces cache;
};

// Some rows, some pairs of inputs, one block of outputs.
template <typename X>
struct Tile {
  const X* x;
  int64_t x_stride;
  const bf16* w;
  int64_t num_pairs;
  float* sums;    // [rows][48]
  bool is_first;  // of the chunks of inputs: sums begin at zero
  const char* ahead;
  int64_t ahead_bytes;  // to fetch with each pair
  AheadPieces cache;    // to ask for meanwhile, a line with each pair
};

#if STEPWIRE_X86

constexpr int kAvx512Rows = 8;
constexpr int kAvx2Rows = 4;

// The sums of a tile, in registers.
template <int kRows>
struct Avx512Sums {
  static constexpr int kVectors = kBlock / 16;
  __m512 sum[kRows][kVectors];
};

// Adds the products of pairs [first, end); kAsks: the pieces' lines are asked for, one with each.
template <int kRows, bool kAsks>
TARGET_AVX512 __attribute__((always_inline)) inline void add_pairs_avx512(
    const Tile<bf16>& tile, Avx512Sums<kRows>& sums, int64_t first, int64_t end) {
  constexpr int kVectors = Avx512Sums<kRows>::kVectors;
  const AheadPieces cache = tile.cache;
  const bf16* w = tile.w + first * kBlock * 2;
  const bf16* x = tile.x + first * 2;
  const char* ahead = tile.ahead + first * tile.ahead_bytes;
  const char* line = kAsks ? cache.piece(0) : nullptr;
  int64_t piece = 0, num_left = cache.lines;
  for (int64_t p = first; p < end; ++p, w += kBlock * 2, x += 2, ahead += tile.ahead_bytes) {
    for (int64_t b = 0; b < tile.ahead_bytes; b += 64) _mm_prefetch(ahead + b, _MM_HINT_T0);
    if constexpr (kAsks) {
      _mm_prefetch(line, _MM_HINT_T1);
      line += 64;
      if (--num_left == 0) {
        line = cache.piece(++piece);
        num_left = cache.lines;
      }
    }
    __m512bh weight[kVectors];
    for (int v = 0; v < kVectors; ++v) weight[v] = (__m512bh)_mm512_loadu_si512(w + v * 32);
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      std::memcpy(&pair, x + r * tile.x_stride, sizeof(pair));
      const __m512bh input = (__m512bh)_mm512_set1_epi32(pair);
      for (int v = 0; v < kVectors; ++v)
        sums.sum[r][v] = _mm512_dpbf16_ps(sums.sum[r][v], weight[v], input);
    }
  }
}

// sums[r][o] (+)= the products of a tile.
template <int kRows>
TARGET_AVX512 void add_products_avx512(const Tile<bf16>& tile) {
  constexpr int kVectors = Avx512Sums<kRows>::kVectors;
  Avx512Sums<kRows> sums;
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      sums.sum[r][v] =
          tile.is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(tile.sums + r * kBlock + v * 16);
  const int64_t num_asking = std::min(tile.num_pairs, tile.cache.count * tile.cache.lines);
  add_pairs_avx512<kRows, true>(tile, sums, 0, num_asking);
  add_pairs_avx512<kRows, false>(tile, sums, num_asking, tile.num_pairs);
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      _mm512_storeu_ps(tile.sums + r * kBlock + v * 16, sums.sum[r][v]);
}

// The same for some vectors of 8 outputs from `output`: as many as 16 registers have room for.
template <int kRows, int kVectors>
TARGET_AVX2 void add_some_products_avx2(const Tile<float>& tile, int64_t output) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000));
  const int64_t ahead_bytes = output == 0 ? tile.ahead_bytes : 0;
  const bf16* const w = tile.w + output * 2;
  float* const sums = tile.sums + output;
  __m256 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = tile.is_first ? _mm256_setzero_ps() : _mm256_loadu_ps(sums + r * kBlock + v * 8);
  for (int64_t p = 0; p < tile.num_pairs; ++p) {
    for (int64_t b = 0; b < ahead_bytes; b += 64)
      _mm_prefetch(tile.ahead + p * ahead_bytes + b, _MM_HINT_T0);
    __m256 even[kVectors], odd[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const __m256i both =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + p * kBlock * 2 + v * 16));
      even[v] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
      odd[v] = _mm256_castsi256_ps(_mm256_and_si256(both, upper));
    }
    for (int r = 0; r < kRows; ++r) {
      const float* const x = tile.x + r * tile.x_stride + p * 2;
      const __m256 first = _mm256_broadcast_ss(x), second = _mm256_broadcast_ss(x + 1);
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = _mm256_fmadd_ps(even[v], first, sum[r][v]);
        sum[r][v] = _mm256_fmadd_ps(odd[v], second, sum[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) _mm256_storeu_ps(sums + r * kBlock + v * 8, sum[r][v]);
}

template <int kRows>
TARGET_AVX2 void add_products_avx2(const Tile<float>& tile) {
  constexpr int kVectors = kRows == 1 ? 6 : kRows == 2 ? 3 : 2;
  for (int64_t output = 0; output < kBlock; output += kVectors * 8)
    add_some_products_avx2<kRows, kVectors>(tile, output);
}

template <typename X>
using AddProducts = void (*)(const Tile<X>&);

constexpr AddProducts<bf16> kAddAvx512[kAvx512Rows] = {
    add_products_avx512<1>, add_products_avx512<2>, add_products_avx512<3>, add_products_avx512<4>,
    add_products_avx512<5>, add_products_avx512<6>, add_products_avx512<7>, add_products_avx512<8>};
constexpr AddProducts<float> kAddAvx2[kAvx2Rows] = {add_products_avx2<1>, add_products_avx2<2>,
                                                    add_products_avx2<3>, add_products_avx2<4>};

// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
inline bf16 round_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<bf16>(value == value ? rounded : 0x7fc0);
}

inline float to_float(bf16 value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

// Adds the bias to the sums of one block and rounds them into y.
TARGET_AVX2 void finish_rows(const Linear& linear, int64_t row, int64_t num_rows, int64_t block,
                             float* sums) {
  const int64_t output = block * kBlock;
  const int64_t width = std::min(kBlock, linear.num_outputs - output);
  for (int64_t r = 0; r < num_rows; ++r) {
    float* const sum = sums + r * kBlock;
    if (linear.bias_O != nullptr)
      for (int64_t o = 0; o < width; ++o) sum[o] += to_float(linear.bias_O[output + o]);
    const int64_t offset = (row + r) * linear.num_outputs + output;
    if (linear.is_y_float) {
      std::memcpy(static_cast<float*>(linear.y_TO) + offset, sum, sizeof(float) * width);
    } else {
      bf16* const y = static_cast<bf16*>(linear.y_TO) + offset;
      for (int64_t o = 0; o < width; ++o) y[o] = round_to_bf16(sum[o]);
    }
  }
}

// What a tile asks for: of its linear layer's share as much as of all its tiles.
AheadPieces tile_share(const AheadPieces& cache, int64_t tile, int64_t num_tiles) {
  AheadPieces share = cache;
  const int64_t first = cache.count * tile / num_tiles;
  share.first = cache.first + first;
  share.count = cache.count * (tile + 1) / num_tiles - first;
  return share;
}

template <typename X, int kMostRows>
void multiply_block(const Linear& linear, int64_t block,
                    const AddProducts<X> (&add_products)[kMostRows]) {
  const X* const x = static_cast<const X*>(linear.x_TI);
  const int64_t num_pairs = linear.num_inputs / 2;
  const bf16* const w = linear.packed + block * kBlock * linear.num_inputs;
  const int64_t num_blocks = divide_up(linear.num_outputs, kBlock);
  alignas(64) float sums[kChunkRows * kBlock];
  for (int64_t row = 0; row < linear.num_rows; row += kChunkRows) {
    const int64_t num_rows = std::min(kChunkRows, linear.num_rows - row);
    const int64_t num_tiles = divide_up(num_rows, kMostRows);
    const int64_t ahead_bytes = divide_up(kPairBytes, num_tiles);
    for (int64_t pair = 0; pair < num_pairs; pair += kChunkPairs) {
      const int64_t num_chunk_pairs = std::min(kChunkPairs, num_pairs - pair);
      const char* const chunk = reinterpret_cast<const char*>(w) + pair * kPairBytes;
      const char* const next = chunk + (num_tiles == 1 ? kAheadBytes : num_pairs * kPairBytes);
      for (int64_t tile = 0; tile < num_tiles; ++tile) {
        // Tiles of nearly equal height: a short last one would cost as much as a full one.
        const int64_t first = num_rows * tile / num_tiles;
        const int64_t height = num_rows * (tile + 1) / num_tiles - first;
        AheadPieces cache;
        if (row == 0 && pair == 0)
          cache = tile_share(linear.cache, block * num_tiles + tile, num_blocks * num_tiles);
        add_products[height - 1]({x + (row + first) * linear.num_inputs + pair * 2,
                                  linear.num_inputs, w + pair * kBlock * 2, num_chunk_pairs,
                                  sums + first * kBlock, pair == 0,
                                  next + tile * num_chunk_pairs * ahead_bytes, ahead_bytes,
                                  cache});
      }
    }
    finish_rows(linear, row, num_rows, block, sums);
  }
}

// The rows in float32 for AVX2, and where inputs are odd a zero behind each row.
const void* prepare_rows(const bf16* x_TI, int64_t num_rows, int64_t num_inputs, int64_t width) {
  thread_local std::vector<float> floats;
  thread_local std::vector<bf16> padded;
  if (isa() == Isa::kAvx2) {
    floats.assign(num_rows * width, 0.0f);
    for (int64_t t = 0; t < num_rows; ++t)
      for (int64_t i = 0; i < num_inputs; ++i)
        floats[t * width + i] = to_float(x_TI[t * num_inputs + i]);
    return floats.data();
  }
  if (width == num_inputs) return x_TI;
  padded.assign(num_rows * width, 0);
  for (int64_t t = 0; t < num_rows; ++t)
    std::memcpy(&padded[t * width], x_TI + t * num_inputs, sizeof(bf16) * num_inputs);
  return padded.data();
}

#endif  // STEPWIRE_X86

}  // namespace

int64_t packed_size_bf16(int64_t num_outputs, int64_t num_inputs) {
  return divide_up(num_outputs, kBlock) * kBlock * divide_up(num_inputs, 2) * 2;
}

void pack_bf16(const bf16* w_OI, bf16* packed, int64_t num_outputs, int64_t num_inputs) {
  const int64_t num_pairs = divide_up(num_inputs, 2);
  parallel_for(divide_up(num_outputs, kBlock), [&](int64_t block) {
    bf16* const to = packed + block * kBlock * num_pairs * 2;
    const int64_t num_lanes = std::min(kBlock, num_outputs - block * kBlock);
    std::memset(to, 0, sizeof(bf16) * kBlock * num_pairs * 2);
    for (int64_t lane = 0; lane < num_lanes; ++lane) {
      const bf16* const from = w_OI + (block * kBlock + lane) * num_inputs;
      for (int64_t i = 0; i < num_inputs; ++i) to[(i / 2 * kBlock + lane) * 2 + i % 2] = from[i];
    }
  });
}

void linear_bf16(const bf16* x_TI, const bf16* packed, const bf16* bias_O, void* y_TO,
                 bool is_y_float, int64_t num_rows, int64_t num_inputs, int64_t num_outputs) {
  linear_bf16_ahead(x_TI, packed, bias_O, y_TO, is_y_float, num_rows, num_inputs, num_outputs, {});
}

void linear_bf16_ahead(const bf16* x_TI, const bf16* packed, const bf16* bias_O, void* y_TO,
                       bool is_y_float, int64_t num_rows, int64_t num_inputs, int64_t num_outputs,
                       const AheadPieces& cache) {
#if STEPWIRE_X86
  const int64_t width = divide_up(num_inputs, 2) * 2;
  const Linear linear = {prepare_rows(x_TI, num_rows, num_inputs, width),
                         packed,
                         bias_O,
                         y_TO,
                         is_y_float,
                         num_rows,
                         width,
                         num_outputs,
                         cache};
  parallel_for_runs(divide_up(num_outputs, kBlock), [&](int64_t block) {
    if (isa() == Isa::kAvx512Bf16)
      multiply_block(linear, block, kAddAvx512);
    else
      multiply_block(linear, block, kAddAvx2);
  });
#endif
}

}  // namespace stepwire
