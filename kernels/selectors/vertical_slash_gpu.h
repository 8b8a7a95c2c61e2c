// Vertical-slash selection on the GPU, all heads in one go and without the
// host: from probe sums to a plan that the attention kernel runs. The twin of
// vertical_slash.h: on the same sums it chooses the same columns and distances
// as SelectVerticalSlash, and its plan has the cells of
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

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/selectors/vertical_slash.h"
#include "kernels/sparse_attention/device_plan.h"

namespace overture::kernels {

// Most query heads: their sizes travel as kernel arguments.
inline constexpr int32_t kMaxSelectorHeads = 128;

struct VerticalSlashGpuParams {
  const float* column_sums = nullptr;    // [num_heads, kv_len], device
  const float* diagonal_sums = nullptr;  // [num_heads, kv_len], device
  // One per query head, before Clamp; host.
  absl::Span<const VerticalSlashSize> sizes;
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  // The (row, key) pairs that the plan computes, over all heads and counted as
  // Cost does, are added to it; device, may be null.
  uint64_t* pairs = nullptr;
};

// All in the scratch memory that the launch was given.
struct VerticalSlashGpuPlan {
  DeviceTilePlan plan;  // one list per query head
  // What was chosen, ascending: head h's columns at verticals + h *
  // vertical_stride, its distances at slashes + h * slash_stride, as many of
  // each as Clamp(sizes[h], kv_len) says.
  const int32_t* verticals = nullptr;
  const int32_t* slashes = nullptr;
  int64_t vertical_stride = 0;
  int64_t slash_stride = 0;
};

// Enough for every launch with as many heads whose q_len, kv_len and sizes do
// not exceed these.
int64_t VerticalSlashScratchBytes(int64_t q_len, int64_t kv_len,
                                  absl::Span<const VerticalSlashSize> sizes);

// Asynchronous on `stream` (a cudaStream_t); borrows the sums and `scratch`
// (device memory, 256-byte aligned) until the plan has been used.
// INVALID_ARGUMENT as Validate(PlanShape), and for no head or more than
// kMaxSelectorHeads; RESOURCE_EXHAUSTED if `scratch_bytes` is too small.
absl::StatusOr<VerticalSlashGpuPlan> LaunchVerticalSlashPlan(
    const VerticalSlashGpuParams& params, void* scratch, int64_t scratch_bytes,
    void* stream);

}  // namespace overture::kernels
