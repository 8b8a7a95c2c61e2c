// A tile plan as the GPU kernel walks it, on the host: what device_plan.h
// points to, in vectors, beside the plan's own ranges. Also the reference for
// plans that are built on the device.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/sparse_attention/device_plan.h"
#include "kernels/tile_plan.h"

namespace overture::kernels {

struct ExpandedPlan {
  std::vector<PlanCell> cells;
  std::vector<int32_t> columns;
  // [num_q_heads * num_q_tiles], item = q_head * num_q_tiles + q_tile, most
  // expensive first; among equals the last tile first, heads side by side, so
  // that blocks at work together read the same keys.
  std::vector<int32_t> order;
};

// INVALID_ARGUMENT if the plan's tile shape is not the kernel's or its lists do
// not fit `num_q_heads` and `num_kv_heads`; OUT_OF_RANGE beyond 2^31 work
// items.
absl::StatusOr<ExpandedPlan> ExpandPlan(const TilePlan& plan,
                                        int32_t num_q_heads,
                                        int32_t num_kv_heads);

}  // namespace overture::kernels
