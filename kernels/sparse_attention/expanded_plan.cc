#include "kernels/sparse_attention/expanded_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace overture::kernels {

int32_t GpuTileRows(int32_t num_lists, int32_t num_q_heads,
                    int32_t num_kv_heads) {
  const int32_t group = num_q_heads / num_kv_heads;
  if (num_lists > num_kv_heads) return kGpuTileRows;
  int32_t packed = 1;
  while (packed < kMaxPackedHeads && group % (2 * packed) == 0) packed *= 2;
  return kGpuTileRows / packed;
}

absl::StatusOr<ExpandedPlan> ExpandPlan(const TilePlan& plan,
                                        int32_t num_q_heads,
                                        int32_t num_kv_heads) {
  if (plan.num_lists != 1 && plan.num_lists != num_kv_heads &&
      plan.num_lists != num_q_heads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "plan.num_lists is ", plan.num_lists, ", must be 1, ", num_kv_heads,
        " (KV heads) or ", num_q_heads, " (query heads)"));
  }
  const int32_t packed_rows =
      GpuTileRows(plan.num_lists, num_q_heads, num_kv_heads);
  if ((plan.tile_rows != kGpuTileRows && plan.tile_rows != packed_rows) ||
      plan.tile_keys != kGpuTileKeys) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan tiles are ", plan.tile_rows, " x ", plan.tile_keys,
                     ", the GPU kernel takes ", kGpuTileRows, " x ",
                     kGpuTileKeys, " or ", packed_rows, " x ", kGpuTileKeys));
  }
  const int64_t num_q_tiles = plan.num_q_tiles();
  const int32_t num_heads = num_q_heads / (kGpuTileRows / plan.tile_rows);
  const int64_t num_items = num_heads * num_q_tiles;
  if (num_items > std::numeric_limits<int32_t>::max()) {
    return absl::OutOfRangeError(
        absl::StrCat("plan has ", num_items, " work items, limit 2^31 - 1"));
  }

  ExpandedPlan expanded;
  const int64_t num_cells = plan.num_cells();
  expanded.cells.reserve(num_cells);
  for (int64_t i = 0; i < num_cells; ++i) {
    PlanCell cell{
        .range_end = plan.range_offsets[i + 1],
        .column_begin = static_cast<int64_t>(expanded.columns.size())};
    for (int64_t r = plan.range_offsets[i]; r < cell.range_end; ++r) {
      cell.num_tiles += plan.ranges[r].num_tiles;
    }
    const int32_t* list =
        plan.columns.data() + plan.column_offsets[i / num_q_tiles];
    for (int64_t j = plan.interval_offsets[i]; j < plan.interval_offsets[i + 1];
         ++j) {
      const ColumnInterval& interval = plan.intervals[j];
      expanded.columns.insert(expanded.columns.end(), list + interval.begin,
                              list + interval.begin + interval.count);
      cell.num_columns += interval.count;
    }
    if (!plan.mean_offsets.empty()) {
      for (int64_t j = plan.mean_offsets[i]; j < plan.mean_offsets[i + 1];
           ++j) {
        cell.num_means += plan.mean_blocks[j].count;
      }
    }
    expanded.cells.push_back(cell);
  }

  const int32_t heads_per_list = num_heads / plan.num_lists;
  const auto cost = [&](int32_t item) {
    const int64_t head = item / num_q_tiles;
    const PlanCell& cell =
        expanded
            .cells[head / heads_per_list * num_q_tiles + item % num_q_tiles];
    return CellCost(cell.num_tiles, cell.num_columns + cell.num_means);
  };
  expanded.order.reserve(num_items);
  for (int64_t tile = num_q_tiles - 1; tile >= 0; --tile) {
    for (int32_t head = 0; head < num_heads; ++head) {
      expanded.order.push_back(static_cast<int32_t>(head * num_q_tiles + tile));
    }
  }
  std::stable_sort(expanded.order.begin(), expanded.order.end(),
                   [&](int32_t a, int32_t b) { return cost(a) > cost(b); });
  return expanded;
}

}  // namespace overture::kernels
