// What the next attention will read of the KV cache, asked for while linear layers multiply.
//
// Attention of many short rows waits for memory, and between attentions the arithmetic of many rows
// leaves memory idle. A layer's cache is a list of pieces; each linear layer on the way asks for
// its share of them.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_step.h"

namespace stepwire {

// Some consecutive pieces; those of all keys stand before those of all values.
struct AheadPieces {
  const int64_t* offsets = nullptr;  // of a piece, in bytes, the same in keys and values
  int64_t num_offsets = 0;
  const char* keys = nullptr;
  const char* values = nullptr;
  int64_t lines = 0;  // cache lines of a piece
  int64_t first = 0, count = 0;

  const char* piece(int64_t index) const {
    const int64_t at = first + index;
    if (at >= 2 * num_offsets) return nullptr;
    return at < num_offsets ? keys + offsets[at] : values + offsets[at - num_offsets];
  }
};

// The pieces of one step, which stand at the same places in every layer, shared out to the linear
// layers between two attentions by the work they do.
class CacheAhead {
 public:
  explicit CacheAhead(const AttentionStep& step);

  // From now on asks for a layer's keys and values, during linear layers of so much work in all.
  void begin(const void* keys, const void* values, int64_t work);

  // From now on asks for nothing.
  void end() { pieces_.num_offsets = 0; }

  // The share of the next linear layer.
  AheadPieces next(int64_t work);

 private:
  std::vector<int64_t> offsets_;
  AheadPieces pieces_;
  int64_t done_ = 0, whole_ = 1;
};

}  // namespace stepwire
