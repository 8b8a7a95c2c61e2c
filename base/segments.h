// How a prompt is cut into segments: by absolute positions alone, so that what
// two prompts share at their beginning is cut alike (docs/design.md, D2).
#pragma once

#include <bit>
#include <cstdint>

namespace overture {

// Segments that grow with what lies before them: the largest power of two times
// `tokens` that is at most half of that, at least `tokens` and at most
// `max_tokens`. Of 4: [0, 4) [4, 8) [8, 12) [12, 16) [16, 24) [24, 32) [32, 48)
// [48, 64) [64, 96) ... REQUIRES 0 < tokens <= max_tokens.
struct SegmentRule {
  int64_t tokens = 0;
  int64_t max_tokens = 0;

  static constexpr SegmentRule Uniform(int64_t tokens) {
    return {.tokens = tokens, .max_tokens = tokens};
  }

  // Length of the segment that holds `position`, >= 0. Every segment begins at
  // a multiple of its length.
  constexpr int64_t LengthAt(int64_t position) const {
    const auto units = static_cast<uint64_t>(position / tokens);
    const auto most =
        std::bit_floor(static_cast<uint64_t>(max_tokens / tokens));
    const uint64_t length = std::bit_floor(units) / 2;
    return tokens * static_cast<int64_t>(length < 1      ? 1
                                         : length < most ? length
                                                         : most);
  }

  // End of the segment that holds `position`, >= 0.
  constexpr int64_t EndOf(int64_t position) const {
    const int64_t length = LengthAt(position);
    return (position / length + 1) * length;
  }

  // Whether a segment begins there.
  constexpr bool IsBoundary(int64_t position) const {
    return position == 0 || EndOf(position - 1) == position;
  }

  // The longest segment of a prompt of `num_tokens`, which may end within it.
  constexpr int64_t LongestOf(int64_t num_tokens) const {
    return LengthAt(num_tokens > 0 ? num_tokens - 1 : 0);
  }

  friend bool operator==(const SegmentRule&, const SegmentRule&) = default;
};

}  // namespace overture
