// A tile plan in device memory, in the form the GPU kernel walks: the CSR of
// tile_plan.h with every cell's columns written out, the tile count of every
// cell, and the order of work. Plain pointers; the owner keeps them alive until
// the launch has finished.
#pragma once

#include <cstdint>

#include "kernels/tile_plan.h"

namespace overture::kernels {

struct DeviceTilePlan {
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int32_t num_lists = 0;    // 1, num_kv_heads or num_q_heads
  int32_t num_q_tiles = 0;  // of 128 rows; key tiles are 64 keys
  // cell = list * num_q_tiles + q_tile
  const int64_t* range_offsets = nullptr;   // [cells + 1]
  const KeyRange* ranges = nullptr;         // ascending inside a cell
  const int32_t* cell_tiles = nullptr;      // [cells], key tiles of the cell
  const int64_t* column_offsets = nullptr;  // [cells + 1]
  const int32_t* columns = nullptr;         // ascending inside a cell
  // Work items, most expensive first: q_head * num_q_tiles + q_tile.
  const int32_t* order = nullptr;  // [num_q_heads * num_q_tiles]
  int32_t* next_item = nullptr;    // one counter, zeroed by the launch
};

}  // namespace overture::kernels
