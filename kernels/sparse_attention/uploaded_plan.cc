#include "kernels/sparse_attention/uploaded_plan.h"

#include <vector>

#include "absl/types/span.h"
#include "base/status_macros.h"
#include "kernels/sparse_attention/expanded_plan.h"

namespace overture::kernels {
namespace {

template <typename T>
absl::Status ToDevice(const std::vector<T>& values, const Stream& stream,
                      DeviceBuffer<T>* buffer) {
  OVERTURE_ASSIGN_OR_RETURN(
      *buffer, DeviceBuffer<T>::Allocate(static_cast<int64_t>(values.size())));
  return buffer->CopyFromHost(absl::MakeConstSpan(values), stream);
}

}  // namespace

absl::StatusOr<UploadedPlan> UploadedPlan::Upload(const TilePlan& plan,
                                                  int32_t num_q_heads,
                                                  int32_t num_kv_heads,
                                                  const Stream& stream) {
  OVERTURE_ASSIGN_OR_RETURN(const ExpandedPlan expanded,
                            ExpandPlan(plan, num_q_heads, num_kv_heads));
  UploadedPlan up;
  OVERTURE_RETURN_IF_ERROR(ToDevice(expanded.cells, stream, &up.cells_));
  OVERTURE_RETURN_IF_ERROR(ToDevice(plan.ranges, stream, &up.ranges_));
  OVERTURE_RETURN_IF_ERROR(ToDevice(expanded.columns, stream, &up.columns_));
  OVERTURE_RETURN_IF_ERROR(ToDevice(expanded.order, stream, &up.order_));
  if (!plan.mean_blocks.empty()) {
    OVERTURE_RETURN_IF_ERROR(
        ToDevice(plan.mean_offsets, stream, &up.mean_offsets_));
    OVERTURE_RETURN_IF_ERROR(
        ToDevice(plan.mean_blocks, stream, &up.mean_blocks_));
  }
  OVERTURE_ASSIGN_OR_RETURN(up.next_item_, DeviceBuffer<int32_t>::Allocate(1));
  OVERTURE_RETURN_IF_ERROR(stream.Synchronize());

  up.plan_ = {.q_begin = plan.q_begin,
              .q_len = plan.q_len,
              .kv_len = plan.kv_len,
              .num_lists = plan.num_lists,
              .num_q_tiles = static_cast<int32_t>(plan.num_q_tiles()),
              .tile_rows = plan.tile_rows,
              .cells = up.cells_.data(),
              .ranges = up.ranges_.data(),
              .columns = up.columns_.data(),
              .mean_offsets = up.mean_offsets_.data(),
              .mean_blocks = up.mean_blocks_.data(),
              .order = up.order_.data(),
              .next_item = up.next_item_.data()};
  return up;
}

}  // namespace overture::kernels
