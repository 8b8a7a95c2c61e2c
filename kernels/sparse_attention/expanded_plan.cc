#include "kernels/sparse_attention/expanded_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace overture::kernels {
namespace {

// Cost of a cell in key tiles; a gathered column costs what a tile's key does.
int64_t CellCost(const ExpandedPlan& expanded, int64_t cell) {
  const int64_t columns =
      expanded.column_offsets[cell + 1] - expanded.column_offsets[cell];
  return expanded.cell_tiles[cell] +
         (columns + kGpuTileKeys - 1) / kGpuTileKeys;
}

}  // namespace

absl::StatusOr<ExpandedPlan> ExpandPlan(const TilePlan& plan,
                                        int32_t num_q_heads,
                                        int32_t num_kv_heads) {
  if (plan.tile_rows != kGpuTileRows || plan.tile_keys != kGpuTileKeys) {
    return absl::InvalidArgumentError(absl::StrCat(
        "plan tiles are ", plan.tile_rows, " x ", plan.tile_keys,
        ", the GPU kernel takes ", kGpuTileRows, " x ", kGpuTileKeys));
  }
  if (plan.num_lists != 1 && plan.num_lists != num_kv_heads &&
      plan.num_lists != num_q_heads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "plan.num_lists is ", plan.num_lists, ", must be 1, ", num_kv_heads,
        " (KV heads) or ", num_q_heads, " (query heads)"));
  }
  const int64_t num_q_tiles = plan.num_q_tiles();
  const int64_t num_items = num_q_heads * num_q_tiles;
  if (num_items > std::numeric_limits<int32_t>::max()) {
    return absl::OutOfRangeError(
        absl::StrCat("plan has ", num_items, " work items, limit 2^31 - 1"));
  }

  ExpandedPlan expanded;
  const int64_t num_cells = plan.num_cells();
  expanded.cell_tiles.reserve(num_cells);
  expanded.column_offsets.reserve(num_cells + 1);
  expanded.column_offsets.push_back(0);
  for (int64_t cell = 0; cell < num_cells; ++cell) {
    int32_t tiles = 0;
    for (int64_t i = plan.range_offsets[cell]; i < plan.range_offsets[cell + 1];
         ++i) {
      tiles += plan.ranges[i].num_tiles;
    }
    expanded.cell_tiles.push_back(tiles);
    const int32_t* list =
        plan.columns.data() + plan.column_offsets[cell / num_q_tiles];
    for (int64_t i = plan.interval_offsets[cell];
         i < plan.interval_offsets[cell + 1]; ++i) {
      const ColumnInterval& interval = plan.intervals[i];
      expanded.columns.insert(expanded.columns.end(), list + interval.begin,
                              list + interval.begin + interval.count);
    }
    expanded.column_offsets.push_back(
        static_cast<int64_t>(expanded.columns.size()));
  }

  const int32_t heads_per_list = num_q_heads / plan.num_lists;
  const auto cost = [&](int32_t item) {
    const int64_t q_head = item / num_q_tiles;
    return CellCost(expanded,
                    q_head / heads_per_list * num_q_tiles + item % num_q_tiles);
  };
  expanded.order.reserve(num_items);
  for (int64_t tile = num_q_tiles - 1; tile >= 0; --tile) {
    for (int32_t head = 0; head < num_q_heads; ++head) {
      expanded.order.push_back(static_cast<int32_t>(head * num_q_tiles + tile));
    }
  }
  std::stable_sort(expanded.order.begin(), expanded.order.end(),
                   [&](int32_t a, int32_t b) { return cost(a) > cost(b); });
  return expanded;
}

}  // namespace overture::kernels
