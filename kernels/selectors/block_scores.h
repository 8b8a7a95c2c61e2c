// Blocks that a query tile keeps by pooled scores: its rows against the mean
// key of every whole block of kMeanBlockKeys keys before it.
//
//   score of block J = log2 of the sum over the tile's rows of
//                      2^(q . k_mean_J * scale * log2(e))
//
// the logarithm of FlashPrefill V2's E (arXiv 2608.19758), which depends on no
// other block, so that nothing has to be corrected for a running maximum. Rows
// outside the query range do not exist. Blocks from the tile's first row on are
// not scored: forced distances cover them.
//
// Scoring every block costs N^2 / 256 products. Beyond
// kMaxScoredSuperBlocks * kSuperBlockKeys keys only the blocks of the best so
// many super-blocks are scored, ranked by the same score of their mean (the
// mean of kBlocksPerSuperBlock means); those after the last whole super-block
// always are. So a tile's cost is bounded but for N / 2048 means, and up to
// 131,072 keys nothing differs from scoring all.
//
// A tile's choice depends on its own rows and on keys before it alone: it is
// the same wherever a prefill resumed, at multiples of kBlockTileRows.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "kernels/tile_plan.h"

namespace overture::kernels {

// Rows of a query tile, positions that are a multiple of them.
inline constexpr int32_t kBlockTileRows = 128;
static_assert(kBlockTileRows == kMeanBlockKeys,
              "blocks before a tile are whole");
inline constexpr int32_t kBlocksPerSuperBlock = 16;
inline constexpr int32_t kSuperBlockKeys =
    kBlocksPerSuperBlock * kMeanBlockKeys;
inline constexpr int32_t kMaxScoredSuperBlocks = 64;
// Of a tile: those of the super-blocks and of an unfinished one.
inline constexpr int32_t kMaxScoredBlocks =
    (kMaxScoredSuperBlocks + 1) * kBlocksPerSuperBlock - 1;

// Which of a tile's scored blocks one head keeps: none unless a threshold or a
// count is set; with both, the best `count` of those that the threshold keeps.
// Ties go to the smaller index, a NaN ranks last and passes no threshold.
struct BlockRule {
  // Keep what scores at least this factor, (0, 1], of the tile's largest (of E,
  // not of its logarithm): FlashPrefill V2's alpha. Larger keeps less. 0: off.
  float threshold = 0;
  // The best so many blocks of kMeanBlockKeys keys: MInference's block_sparse,
  // arXiv 2407.02490. 0: off.
  int32_t count = 0;
  // Blocks that the tile leaves out enter its softmax as their means
  // (hybrid.h); of no matter to what is kept.
  bool correct_means = false;

  // Whether it keeps any block.
  bool IsOn() const { return threshold > 0 || count > 0; }
  friend bool operator==(const BlockRule&, const BlockRule&) = default;
};

// INVALID_ARGUMENT unless 0 <= threshold <= 1 and count >= 0.
absl::Status Validate(const BlockRule& rule);

// Strides count elements; the head dim is contiguous.
struct BlockScoreParams {
  DType dtype = DType::kBF16;  // of all tensors: kBF16 or kF32
  const void* q = nullptr;     // [q_len, num_q_heads, head_dim] by strides
  // [num_kv_heads, blocks before the last tile, head_dim], as block_means/
  // makes them of the keys.
  const void* k_means = nullptr;
  // [num_kv_heads, whole super-blocks among them, head_dim], as block_means/
  // makes them of k_means. Not read, may be null, where no tile has more than
  // kMaxScoredSuperBlocks.
  const void* super_means = nullptr;
  int64_t stride_q_row = 0;
  int64_t stride_q_head = 0;
  int64_t stride_mean_row = 0;
  int64_t stride_mean_head = 0;
  int64_t stride_super_row = 0;
  int64_t stride_super_head = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_q_heads
  int32_t head_dim = 0;
  float scale = 0;      // of the softmax, > 0
  int64_t q_begin = 0;  // position of row 0
  int64_t q_len = 0;

  int64_t first_tile_begin() const {
    return q_begin / kBlockTileRows * kBlockTileRows;
  }
  int64_t num_q_tiles() const {
    return (q_begin + q_len - first_tile_begin() + kBlockTileRows - 1) /
           kBlockTileRows;
  }
  // Blocks that the last tile could keep.
  int64_t num_blocks() const { return (q_begin + q_len - 1) / kBlockTileRows; }
};

// INVALID_ARGUMENT names the field, its value and its limit.
absl::Status CheckBlockScores(const BlockScoreParams& params,
                              absl::Span<const BlockRule> rules);

// The blocks that each tile of each head keeps, as bits: bit b of a tile that
// begins at s is block s / kMeanBlockKeys - b. Bit 0 is never set.
struct BlockSets {
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int32_t num_heads = 0;
  int64_t num_q_tiles = 0;
  int64_t num_words = 0;       // of a tile
  std::vector<uint32_t> bits;  // [num_heads, num_q_tiles, num_words]

  bool Has(int64_t cell, int64_t bit) const {
    return (bits[cell * num_words + bit / 32] >> (bit % 32) & 1) != 0;
  }
};

// Words of a tile's bits: block 0 of the last tile is in the last.
constexpr int64_t BlockWords(int64_t num_blocks) { return num_blocks / 32 + 1; }

// Of one tile's scored blocks, ascending, those that the rule keeps.
std::vector<bool> KeepBlocks(absl::Span<const float> scores,
                             const BlockRule& rule);

// One rule per query head. Uses OpenMP's threads; results do not depend on how
// many. With `scores`, [num_q_heads, num_q_tiles, num_blocks()], the score of
// every block that was scored, others left as they are.
absl::StatusOr<BlockSets> ChooseBlocksCpu(const BlockScoreParams& params,
                                          absl::Span<const BlockRule> rules,
                                          float* scores = nullptr);

}  // namespace overture::kernels
