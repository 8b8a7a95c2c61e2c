// A view: which tokens of the stored KV a decode worker receives, per layer
// and KV head, chosen by the request's own last queries. Plans are plain host
// data, testable without a model. Views are temporary and never enter the
// prefix index (docs/design.md, D3).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace overture::compress {

enum class Pooling : uint8_t { kAverage = 1, kMax = 2 };

// Widest pooling accepted: the cost grows with n * width, and no setting in use
// is wider than 63.
inline constexpr int32_t kMaxPoolingWidth = 1023;

// SnapKV per KV head.
// Source: arXiv 2404.14469, section 4. We differ: votes are summed in fp32 and
// averaged over the query heads of a KV head *before* pooling, ties fall to
// the higher unpooled vote, then to the lower position, and kept positions are
// ascending.
struct SnapKvOptions {
  int32_t window = 32;      // W, last queries that vote; always kept
  int32_t capacity = 1024;  // C, rows kept per KV head, window included; > W
  Pooling pooling = Pooling::kMax;
  // Odd, at most kMaxPoolingWidth. The window's rows vote for where an answer
  // begins; it is kept as far as (width - 1) / 2 tokens behind. The published 7
  // breaks off answers of more than four tokens (docs/quality.md).
  int32_t pooling_width = 63;
};

// INVALID_ARGUMENT naming field, value and limit.
absl::Status Validate(const SnapKvOptions& options);

// Positions kept by one KV head of one layer, ascending: the window [n - W, n)
// plus the C - W best voted before it; all of [0, n) when n <= W or n <= C.
// `votes` has n entries: ProbeAttention's window_votes for this KV head.
// Average pooling divides by the full width also at the edges (zero padding);
// max pooling ignores what lies outside [0, n - W). A NaN vote ranks last.
// REQUIRES Validate(options).ok().
std::vector<int32_t> SnapKvPositions(absl::Span<const float> votes,
                                     const SnapKvOptions& options);

// positions[layer][kv_head], ascending; lengths may differ.
struct ViewPlan {
  std::vector<std::vector<std::vector<int32_t>>> positions;
  int64_t logical_length = 0;  // n: where the next token's position starts
};

}  // namespace overture::compress
