// One query tile's keys, cut into the dense chunks that the CPU attention
// multiplies at once. Thread-compatible; Build reuses the memory of the last.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/tile_plan.h"

namespace overture::kernels {

// Keys [key_begin, key_begin + count) stand at columns [offset, offset + count)
// of their chunk. In a chunk of means they are blocks.
struct KeyPiece {
  int32_t key_begin = 0;
  int32_t count = 0;
  int32_t offset = 0;
};

struct KeyChunk {
  int32_t piece_begin = 0;  // of KeyChunks::pieces
  int32_t piece_end = 0;
  int32_t num_keys = 0;  // 1 .. max_keys
  bool means = false;    // means of blocks instead of keys
};

struct KeyChunks {
  std::vector<KeyPiece> pieces;
  std::vector<KeyChunk> chunks;

  // Key tiles first, columns after, means last and in chunks of their own, each
  // ascending; neighbours merge. Keys at
  // or past the end of the query tile are dropped, as no row sees them; keys
  // past kv_len are not, so that the cut depends on the plan's lists alone.
  // REQUIRES a cell whose offsets lie within the plan's arrays.
  void Build(const TilePlan& plan, int64_t list, int64_t tile,
             int32_t max_keys);
};

}  // namespace overture::kernels
