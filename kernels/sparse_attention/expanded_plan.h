// A tile plan as the GPU kernel walks it, on the host: what device_plan.h
// points to, in vectors. Also the reference for plans that are built on the
// device.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tile_plan.h"

namespace overture::kernels {

// Query rows of a work item and keys of a tile that the GPU kernel takes.
inline constexpr int32_t kGpuTileRows = 128;
inline constexpr int32_t kGpuTileKeys = 64;

struct ExpandedPlan {
  std::vector<int32_t> cell_tiles;      // [cells]
  std::vector<int64_t> column_offsets;  // [cells + 1]
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
