// The tile plan: which keys each query tile attends to. Every selector yields
// one, one attention kernel executes any (docs/design.md, D1). Plain host data.
//
// All positions are absolute, so a stored prefix needs no special case: query
// rows are positions [q_begin, q_begin + q_len), keys [0, kv_len), and
// q_begin + q_len <= kv_len. Query tile t covers [s, e), where s =
// first_tile_begin() + t * tile_rows is a multiple of tile_rows; rows of it
// outside the query range do not exist. Aligning tiles to absolute positions
// keeps a row's key order, and so its bits, independent of where a prefill
// resumed.
//
// Invariants, checked by Validate (names as in docs/design.md):
//   I2 within one query tile no key is covered twice, be it by its block's mean
//   I3 every real row sees its own key
//   I4 every column and every key of a corrected block is < s of the tile that
//      lists it
//   I5 every key tile starts < e; keys at or past kv_len, and keys after the
//      row (causal mask), are masked by the kernel
//   I6 ranges, intervals, columns and corrected blocks ascending
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace overture::kernels {

// Key tiles [begin + i * tile_keys, begin + (i + 1) * tile_keys), i <
// num_tiles.
struct KeyRange {
  int32_t begin = 0;
  int32_t num_tiles = 0;
  friend bool operator==(const KeyRange&, const KeyRange&) = default;
};

// Entries [begin, begin + count) of the head's column list.
struct ColumnInterval {
  int32_t begin = 0;
  int32_t count = 0;
  friend bool operator==(const ColumnInterval&,
                         const ColumnInterval&) = default;
};

// Keys of a block that may enter the softmax as one: their mean.
inline constexpr int32_t kMeanBlockKeys = 128;

// Blocks [begin, begin + count): keys from begin * kMeanBlockKeys on.
struct BlockInterval {
  int32_t begin = 0;
  int32_t count = 0;
  friend bool operator==(const BlockInterval&, const BlockInterval&) = default;
};

struct TilePlan {
  int32_t tile_rows = 64;  // M
  int32_t tile_keys = 64;  // B
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  // Lists of the plan: the query heads, the KV heads (a group shares one
  // list), or 1 (every head shares it).
  int32_t num_lists = 0;

  // CSR over cell = list * num_q_tiles() + q_tile.
  std::vector<int64_t> range_offsets;  // [num_lists * num_q_tiles + 1]
  std::vector<KeyRange> ranges;
  std::vector<int64_t> interval_offsets;  // [num_lists * num_q_tiles + 1]
  std::vector<ColumnInterval> intervals;
  // Single columns, stored once per list: [column_offsets[l],
  // column_offsets[l + 1]) of `columns` is list l's, ascending.
  std::vector<int64_t> column_offsets;  // [num_lists + 1]
  std::vector<int32_t> columns;
  // Mean corrections (FlashPrefill V2, arXiv 2608.19758): a block that the cell
  // leaves out enters as one key, its keys' mean, weighted as all of them
  // (sparse_attention/params.h). Both empty where a plan has none.
  std::vector<int64_t> mean_offsets;  // [num_lists * num_q_tiles + 1]
  std::vector<BlockInterval> mean_blocks;

  int64_t first_tile_begin() const { return q_begin / tile_rows * tile_rows; }
  int64_t num_q_tiles() const {
    return (q_begin + q_len - first_tile_begin() + tile_rows - 1) / tile_rows;
  }
  int64_t num_cells() const { return num_lists * num_q_tiles(); }

  // Bytes of the arrays above.
  int64_t SizeBytes() const;
};

// INTERNAL naming list, tile and the broken invariant; INVALID_ARGUMENT for
// sizes that do not fit together. O(size of the plan).
absl::Status Validate(const TilePlan& plan);

// What a plan costs, over all lists.
struct PlanCost {
  int64_t key_tiles = 0;  // tiles the kernel computes
  int64_t columns = 0;    // (query tile, column) pairs
  int64_t means = 0;      // (query tile, corrected block) pairs
  // Computed (row, key) pairs / causal pairs, a mean being one key; 1.0 for
  // dense up to the tiles' ragged edges, which are not counted.
  double density = 0;
};
PlanCost Cost(const TilePlan& plan);

}  // namespace overture::kernels
