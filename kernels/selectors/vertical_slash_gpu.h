// Vertical-slash selection on the GPU, all heads in one go and without the
// host, in two steps. The choice, once per segment: from probe sums to each
// head's columns and distances. The plan, for any rows of the segment: what the
// attention kernel runs. So the memory of a plan is that of the rows which are
// computed at once, however long the segment is.
//
// The twin of vertical_slash.h: on the same sums it chooses the same columns
// and distances as SelectVerticalSlash, and its plan has the cells of
// BuildVerticalSlashPlan(kAligned), in the shared form of device_plan.h (the
// last cell may hold one more tile, at or after kv_len).
//
// A head's distances become one list of key tiles counted from the end of a
// query tile, which all its cells share; only single columns are written out
// per cell, so that a plan takes about 4 bytes a column and cell.
//
// Source of the rule: MInference, arXiv 2407.02490, section 3.2;
// docs/sparse_plans.md, section 3.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/selectors/vertical_slash.h"
#include "kernels/sparse_attention/device_plan.h"

namespace overture::kernels {

// Most query heads: their sizes travel as kernel arguments.
inline constexpr int32_t kMaxSelectorHeads = 128;

struct VerticalSlashChoiceParams {
  const float* column_sums = nullptr;    // [num_heads, kv_len], device
  const float* diagonal_sums = nullptr;  // [num_heads, kv_len], device
  // One per query head, before Clamp; host.
  absl::Span<const VerticalSlashSize> sizes;
  int64_t kv_len = 0;
};

// What was chosen; all on the device, in the scratch memory of the launch.
struct VerticalSlashChoice {
  int64_t kv_len = 0;
  int32_t num_heads = 0;
  // Ascending: head h's columns at verticals + h * vertical_stride, its
  // distances at slashes + h * slash_stride.
  const int32_t* verticals = nullptr;
  const int32_t* slashes = nullptr;
  int64_t vertical_stride = 0;
  int64_t slash_stride = 0;
  // How many: [num_heads] of columns, then [num_heads] of distances.
  const int32_t* counts = nullptr;
  // The distances as key tiles. Relative tile r of a query tile that ends at e
  // is keys [e - 64 (r + 1), e - 64 r), whatever e is.
  int32_t num_words = 0;                // of 32 relative tiles
  const uint32_t* tile_bits = nullptr;  // [num_heads, num_words]
  const int32_t* tile_ranks = nullptr;  // same: tiles in the words before
  // The same as ranges for PlanCell with key_origin e: head h's end, the
  // diagonal last, at ranges + (h + 1) * range_stride.
  const KeyRange* ranges = nullptr;
  int64_t range_stride = 0;
  std::vector<int32_t> max_columns;  // [num_heads]: no more are chosen; host
};

// Enough for every choice with as many heads whose kv_len and sizes do not
// exceed these.
int64_t VerticalSlashChoiceBytes(int64_t kv_len,
                                 absl::Span<const VerticalSlashSize> sizes);

// Asynchronous on `stream` (a cudaStream_t); borrows the sums until the stream
// has passed the launch, `scratch` (device memory, 256-byte aligned) until the
// choice has been used. INVALID_ARGUMENT without a key or for more than 2^30,
// for no head or more than kMaxSelectorHeads; RESOURCE_EXHAUSTED if
// `scratch_bytes` is too small.
absl::StatusOr<VerticalSlashChoice> LaunchVerticalSlashChoice(
    const VerticalSlashChoiceParams& params, void* scratch,
    int64_t scratch_bytes, void* stream);

struct VerticalSlashPlanParams {
  int64_t q_begin = 0;
  int64_t q_len = 0;  // q_begin + q_len is at most the choice's kv_len
  // The (row, key) pairs that the plan computes, over all heads and counted as
  // Cost does, are added to it; device, may be null.
  uint64_t* pairs = nullptr;
};

// Enough for every plan of as many heads whose q_len, kv_len and sizes do not
// exceed these.
int64_t VerticalSlashPlanBytes(int64_t q_len, int64_t kv_len,
                               absl::Span<const VerticalSlashSize> sizes);

// The plan of some rows, one list per query head. Asynchronous on `stream`, on
// which the choice was launched before; borrows the choice's memory and
// `scratch` (as above) until the plan has been used. INVALID_ARGUMENT as
// Validate(PlanShape); RESOURCE_EXHAUSTED if `scratch_bytes` is too small.
absl::StatusOr<DeviceTilePlan> LaunchVerticalSlashPlan(
    const VerticalSlashChoice& choice, const VerticalSlashPlanParams& params,
    void* scratch, int64_t scratch_bytes, void* stream);

}  // namespace overture::kernels
