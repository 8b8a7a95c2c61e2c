// A tile plan as the GPU kernel walks it, on the host: what device_plan.h
// points to, in vectors, beside the plan's own ranges and corrected blocks.
// Also the reference for plans that are built on the device.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/sparse_attention/device_plan.h"
#include "kernels/tile_plan.h"

namespace overture::kernels {

// Positions of a query tile that fill a work item when the query heads of a KV
// head share a list and are packed: 128 / (the largest power of two, at most
// 64, that divides the group). 128 where each query head has a list of its own.
int32_t GpuTileRows(int32_t num_lists, int32_t num_q_heads,
                    int32_t num_kv_heads);

struct ExpandedPlan {
  std::vector<PlanCell> cells;
  std::vector<int32_t> columns;
  // [heads * num_q_tiles], item = head * num_q_tiles + q_tile where a head is
  // one query head or a pack of them (device_plan.h), most expensive first;
  // among equals the last tile first, heads side by side, so that blocks at
  // work together read the same keys.
  std::vector<int32_t> order;
};

// Packs heads if plan.tile_rows is GpuTileRows of its lists and not 128.
// INVALID_ARGUMENT if the plan's tile shape is none of the two or its lists do
// not fit `num_q_heads` and `num_kv_heads`; OUT_OF_RANGE beyond 2^31 work
// items.
absl::StatusOr<ExpandedPlan> ExpandPlan(const TilePlan& plan,
                                        int32_t num_q_heads,
                                        int32_t num_kv_heads);

}  // namespace overture::kernels
