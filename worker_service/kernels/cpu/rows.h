// Shares rows among threads when they are worth it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "threads.h"

namespace stepwire {

// Calls body(row) for each row, several at a time where a row's elements alone are too few.
template <typename Body>
void for_rows(int64_t num_rows, int64_t row_size, const Body& body) {
  constexpr int64_t kElementsAtOnce = 8192;
  const int64_t at_once = std::max<int64_t>(1, kElementsAtOnce / row_size);
  parallel_for((num_rows + at_once - 1) / at_once, [&](int64_t index) {
    const int64_t end = std::min(num_rows, (index + 1) * at_once);
    for (int64_t row = index * at_once; row < end; ++row) body(row);
  });
}

}  // namespace stepwire
