// How many pairs a causal mask leaves, for what a plan costs. For host and
// device (nvcc --expt-relaxed-constexpr).
#pragma once

#include <algorithm>
#include <cstdint>

namespace overture::kernels {

// Pairs (row, key) with key in [begin, end), row in [row_begin, row_end) and
// key <= row.
constexpr int64_t CausalPairs(int64_t row_begin, int64_t row_end, int64_t begin,
                              int64_t end) {
  // Rows [row_begin, full) see a part of the keys, rows [full, row_end) all.
  row_begin = std::max(row_begin, begin);
  if (row_begin >= row_end || begin >= end) return 0;
  const int64_t full = std::clamp(end - 1, row_begin, row_end);
  const int64_t first = row_begin + 1 - begin;
  const int64_t last = full - begin;
  return (first + last) * (full - row_begin) / 2 +
         (row_end - full) * (end - begin);
}

}  // namespace overture::kernels
