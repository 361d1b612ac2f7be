// What the kernels of quantized weights share: a block of outputs times many rows, and its results.
//
// A block is kOutputs outputs. Inputs come padded with zeros to a multiple of kInputs, rows one
// behind the other. AVX-512 has instructions and registers enough to unpack a block's weights anew
// for every few rows; AVX2 unpacks them once into a panel of float32.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "isa.h"
#include "kernels.h"
#include "threads.h"

namespace stepwire {

constexpr int64_t kOutputs = 32;
constexpr int64_t kInputs = 32;

// Rows that a task computes.
constexpr int64_t kTaskRows = 128;

// How far a block's weights are fetched before they are needed.
constexpr int64_t kAheadBytes = 4096;

inline int64_t num_blocks(int64_t num_outputs) { return (num_outputs + kOutputs - 1) / kOutputs; }
inline int64_t padded(int64_t num_inputs) { return (num_inputs + kInputs - 1) / kInputs * kInputs; }

// bfloat16 of an integer that it holds exactly.
inline bf16 exact_bf16(int value) {
  const float number = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  return static_cast<bf16>(bits >> 16);
}

// Calls body(block, first row, number of rows) in parallel until every row met every block.
template <typename Body>
void for_blocks(int64_t num_rows, int64_t num_outputs, const Body& body) {
  const int64_t blocks = num_blocks(num_outputs);
  const int64_t chunks = (num_rows + kTaskRows - 1) / kTaskRows;
  parallel_for_runs(blocks * chunks, [&](int64_t task) {
    const int64_t first = task / blocks * kTaskRows;
    body(task % blocks, first, std::min(kTaskRows, num_rows - first));
  });
}

// Calls body(first row, number of rows) for tiles of nearly equal height, none above `most`.
template <typename Body>
void for_tiles(int64_t num_rows, int64_t most, const Body& body) {
  const int64_t num_tiles = (num_rows + most - 1) / most;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t first = num_rows * tile / num_tiles;
    body(first, num_rows * (tile + 1) / num_tiles - first);
  }
}

// Where results go, float32 or bfloat16: y_TO = sums · scale_O + bias_O; scale and bias may be null.
struct Results {
  void* y;
  bool is_float;
  int64_t num_outputs;
  const float* scale;
  const float* bias;

  // Writes [num_rows][kOutputs] sums of one block; the last block may be narrower.
  void write(const float* sums, int64_t first_row, int64_t num_rows, int64_t block) const;
};

// Room of the calling thread for a panel.
float* panel_room(int64_t num_inputs);

// sums[row][output] of num_rows rows and a panel [input][kOutputs].
void sum_panel_avx2(const float* x, int64_t num_rows, int64_t num_inputs, const float* panel,
                    float* sums);

}  // namespace stepwire
