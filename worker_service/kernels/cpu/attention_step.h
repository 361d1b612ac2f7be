// What all layers of a step share, as 64-bit fields in the order Python packs them.
#pragma once

#include <cstdint>

namespace stepwire {

// T tokens of the step, R rows, B most blocks of a row, D head size.
struct AttentionStep {
  int64_t is_bf16;  // of queries, keys, values, cache, cosines and output; else they are float32
  int64_t num_rows;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_size;
  int64_t num_slots;  // of the cache, per key head
  int64_t block_size;
  int64_t table_width;
  const int32_t* query_offsets;  // [R + 1]
  const int32_t* seq_lens;       // [R]
  const int32_t* block_table;    // [R, B]
  const int64_t* slot_mapping;   // [T], -1 stores nothing
  const void* cosines;           // [T, D], or null for no rotation
  const void* sines;             // [T, D], the first half negative
};

}  // namespace stepwire
