#include "cache_ahead.h"

#include <algorithm>

namespace stepwire {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kPieceLines = 16;
// Of a layer; what is asked for beyond would be gone before it is read.
constexpr int64_t kMostBytes = 8 << 20;

}  // namespace

CacheAhead::CacheAhead(const AttentionStep& step) {
  const int64_t token_bytes = step.head_size * (step.is_bf16 ? 2 : 4);
  const int64_t block_bytes = step.block_size * token_bytes;
  pieces_.lines = std::min(kPieceLines, block_bytes / kLineBytes);
  if (pieces_.lines == 0) return;
  const int64_t piece_bytes = pieces_.lines * kLineBytes;
  const auto most = static_cast<std::size_t>(kMostBytes / 2 / piece_bytes);
  for (int64_t row = 0; row < step.num_rows; ++row) {
    const int64_t queries = step.query_offsets[row + 1] - step.query_offsets[row];
    const int64_t bytes = (step.seq_lens[row] - queries) * token_bytes;
    const int32_t* const blocks = step.block_table + row * step.table_width;
    for (int64_t head = 0; head < step.num_kv_heads; ++head)
      for (int64_t from = 0; from < bytes && offsets_.size() < most; from += piece_bytes)
        offsets_.push_back(head * step.num_slots * token_bytes +
                           blocks[from / block_bytes] * block_bytes + from % block_bytes);
  }
  pieces_.offsets = offsets_.data();
}

void CacheAhead::begin(const void* keys, const void* values, int64_t work) {
  pieces_.keys = static_cast<const char*>(keys);
  pieces_.values = static_cast<const char*>(values);
  pieces_.num_offsets = static_cast<int64_t>(offsets_.size());
  done_ = 0;
  whole_ = work;
}

AheadPieces CacheAhead::next(int64_t work) {
  const int64_t num_pieces = 2 * pieces_.num_offsets;
  pieces_.first = num_pieces * done_ / whole_;
  done_ = std::min(whole_, done_ + work);
  pieces_.count = num_pieces * done_ / whole_ - pieces_.first;
  return pieces_;
}

}  // namespace stepwire
