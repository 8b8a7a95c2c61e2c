// Which query rows the 128 rows of a work item are: positions ascending, and
// for each position the query heads that the item packs, side by side.
#pragma once

#include <cstdint>

#include "kernels/sparse_attention/device_plan.h"

namespace overture::kernels {

struct QueryTile {
  int32_t begin;       // position of row 0, maybe before plan.q_begin
  int32_t first_head;  // of the packed query heads
  int32_t pack_shift;  // log2 of their number

  // `head` counts the items' heads: query heads in packs.
  __device__ __forceinline__ QueryTile(const DeviceTilePlan& plan, int head,
                                       int q_tile) {
    const int tile_shift = __popc(plan.tile_rows - 1);
    begin = (static_cast<int>(plan.q_begin >> tile_shift) + q_tile)
            << tile_shift;
    pack_shift = __popc(kGpuTileRows - 1) - tile_shift;
    first_head = head << pack_shift;
  }
  __device__ __forceinline__ int Position(int row) const {
    return begin + (row >> pack_shift);
  }
  __device__ __forceinline__ int Head(int row) const {
    return first_head + (row & ((1 << pack_shift) - 1));
  }
};

// The plan's cell of a work item. `num_heads` is that of the items.
__device__ __forceinline__ int64_t CellIndexOf(const DeviceTilePlan& plan,
                                               int num_heads, int head,
                                               int q_tile) {
  const int list = head * plan.num_lists / num_heads;
  return int64_t{list} * plan.num_q_tiles + q_tile;
}
__device__ __forceinline__ PlanCell CellOf(const DeviceTilePlan& plan,
                                           int num_heads, int head,
                                           int q_tile) {
  return plan.cells[CellIndexOf(plan, num_heads, head, q_tile)];
}

}  // namespace overture::kernels
