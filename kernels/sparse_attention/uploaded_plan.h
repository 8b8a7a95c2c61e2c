// Owner of a tile plan in device memory.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "kernels/sparse_attention/device_plan.h"
#include "kernels/tile_plan.h"

namespace overture::kernels {

// Movable; thread-compatible. Outlives every launch that was given plan().
class UploadedPlan {
 public:
  // Copies on `stream` and waits for it. Errors of ExpandPlan and of the
  // device.
  static absl::StatusOr<UploadedPlan> Upload(const TilePlan& plan,
                                             int32_t num_q_heads,
                                             int32_t num_kv_heads,
                                             const Stream& stream);

  const DeviceTilePlan& plan() const { return plan_; }

 private:
  DeviceBuffer<PlanCell> cells_;
  DeviceBuffer<KeyRange> ranges_;
  DeviceBuffer<int32_t> columns_;
  DeviceBuffer<int64_t> mean_offsets_;
  DeviceBuffer<BlockInterval> mean_blocks_;
  DeviceBuffer<int32_t> order_;
  DeviceBuffer<int32_t> next_item_;
  DeviceTilePlan plan_;
};

}  // namespace overture::kernels
