// How the rows of a prefill are cut: shared by all back ends, since the cuts
// decide what plans are chosen over (prefix purity). Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "base/segments.h"
#include "base/status_macros.h"

namespace overture::engine {

// Calls fn(begin, end), which returns a Status, for the pieces into which a
// rule cuts [begin, end); ends at the first error.
template <typename Fn>
absl::Status ForEachPiece(int64_t begin, int64_t end, const SegmentRule& rule,
                          Fn fn) {
  while (begin < end) {
    const int64_t stop = std::min(end, rule.EndOf(begin));
    OVERTURE_RETURN_IF_ERROR(fn(begin, stop));
    begin = stop;
  }
  return absl::OkStatus();
}

// Pairs of a row in [begin, end) and a key at or before it.
inline int64_t CausalPairs(int64_t begin, int64_t end) {
  return (end - begin) * (begin + end + 1) / 2;
}

}  // namespace overture::engine
