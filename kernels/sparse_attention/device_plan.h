// A tile plan in device memory, in the form the GPU kernel walks: per cell
// where its key tiles and its columns lie, and the order of work. Plain
// pointers; the owner keeps them alive until the launch has finished.
//
// Cells may share ranges. A cell walks backwards from `range_end` and stops
// after `num_tiles` tiles, and `key_origin` is added to every range: so the
// query tiles of a head whose tiles differ by a shift alone share one list, of
// which a cell near key 0 takes a part, its first range possibly cut.
#pragma once

#include <cstdint>

#include "kernels/tile_plan.h"

namespace overture::kernels {

// Query rows of a work item and keys of a tile that the GPU kernel takes.
inline constexpr int32_t kGpuTileRows = 128;
inline constexpr int32_t kGpuTileKeys = 64;
// Query heads that share a work item, a power of two: an output box has 64
// rows.
inline constexpr int32_t kMaxPackedHeads = 64;

// cell = list * num_q_tiles + q_tile
struct alignas(16) PlanCell {
  int64_t range_end = 0;     // in `ranges`, exclusive
  int64_t column_begin = 0;  // in `columns`
  int32_t num_tiles = 0;     // key tiles of the cell
  int32_t key_origin = 0;    // added to the begin of every range
  int32_t num_columns = 0;
  int32_t num_means = 0;  // blocks that enter as their means
  friend bool operator==(const PlanCell&, const PlanCell&) = default;
};
static_assert(sizeof(PlanCell) == 32);

// Cost of a cell in key tiles; a gathered column costs what a tile's key does.
constexpr int32_t CellCost(int32_t num_tiles, int32_t num_columns) {
  return num_tiles + (num_columns + kGpuTileKeys - 1) / kGpuTileKeys;
}

// A tile may start at or after kv_len, in the last query tile alone: zeros that
// no row sees.
struct DeviceTilePlan {
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int32_t num_lists = 0;  // 1, num_kv_heads or num_q_heads
  int32_t num_q_tiles = 0;
  // Positions of a query tile. A work item has kGpuTileRows rows: below that,
  // each position stands for packed_heads() query heads, which share a KV head
  // and a list.
  int32_t tile_rows = kGpuTileRows;
  const PlanCell* cells = nullptr;   // [num_lists * num_q_tiles]
  const KeyRange* ranges = nullptr;  // ascending inside a cell
  const int32_t* columns = nullptr;  // ascending inside a cell
  // Corrected blocks as in TilePlan; null where no cell has any. A cell's
  // intervals may be followed by empty ones up to a multiple of 32, and what
  // follows those up to its end is of no matter.
  const int64_t* mean_offsets = nullptr;  // [num_lists * num_q_tiles + 1]
  const BlockInterval* mean_blocks = nullptr;
  // Work items, most expensive first: head * num_q_tiles + q_tile, where head h
  // is query heads [h, h + 1) * packed_heads().
  const int32_t* order = nullptr;  // [num_q_heads/packed_heads() * num_q_tiles]
  int32_t* next_item = nullptr;    // one counter, zeroed by the launch

  int32_t packed_heads() const { return kGpuTileRows / tile_rows; }
};

}  // namespace overture::kernels
