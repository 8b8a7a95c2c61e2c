// How a prompt is cut into segments: by absolute positions alone, so that what
// two prompts share at their beginning is cut alike (docs/design.md, D2).
#pragma once

#include <cstdint>

namespace overture {

// Segments of `tokens`, from position `long_from` on of `long_tokens`.
// REQUIRES positive lengths; long_from is a multiple of `tokens`.
struct SegmentRule {
  int64_t tokens = 0;
  int64_t long_from = 0;
  int64_t long_tokens = 0;

  static constexpr SegmentRule Uniform(int64_t tokens) {
    return {.tokens = tokens, .long_from = 0, .long_tokens = tokens};
  }

  // End of the segment that holds `position`, >= 0.
  constexpr int64_t EndOf(int64_t position) const {
    return position < long_from
               ? (position / tokens + 1) * tokens
               : long_from +
                     ((position - long_from) / long_tokens + 1) * long_tokens;
  }

  // Whether a segment begins there.
  constexpr bool IsBoundary(int64_t position) const {
    return position == 0 || EndOf(position - 1) == position;
  }

  // The longest segment of a prompt of `num_tokens`, which may end within it.
  constexpr int64_t LongestOf(int64_t num_tokens) const {
    return num_tokens > long_from && long_tokens > tokens ? long_tokens
                                                          : tokens;
  }

  friend bool operator==(const SegmentRule&, const SegmentRule&) = default;
};

}  // namespace overture
