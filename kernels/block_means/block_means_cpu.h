// Means of blocks of kMeanBlockKeys keys or values: what a plan with mean
// corrections attends to in place of the blocks (kernels/tile_plan.h), and what
// blocks are scored by (kernels/selectors/block_scores.h). Means of means are
// those of longer blocks.
//
// Thread-safe; uses OpenMP's threads. A mean is summed in fp32 in one fixed
// order, the same on CPU and GPU, and rounded once: equal rows give equal bits
// everywhere. Source: FlashPrefill V2, arXiv 2608.19758.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "kernels/tile_plan.h"

namespace overture::kernels {

// Strides count elements; the head dim is contiguous.
struct BlockMeansParams {
  DType dtype = DType::kBF16;  // of rows and means: kBF16 or kF32
  const void* rows = nullptr;  // [num_heads, rows, head_dim]: K or V
  void* means = nullptr;       // [num_heads, blocks, head_dim]
  int64_t stride_row = 0;
  int64_t stride_head = 0;
  int64_t stride_mean_row = 0;
  int64_t stride_mean_head = 0;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  int32_t block_rows = kMeanBlockKeys;  // a power of two in [16, 128]
  // Blocks to compute: those that new rows completed. All their rows exist.
  int64_t block_begin = 0;
  int64_t block_end = 0;
};

// Sums of a block: part g adds rows [g, g + 1) * kMeanPartRows in order, then
// the parts are added in order.
inline constexpr int32_t kMeanPartRows = 16;

// INVALID_ARGUMENT naming a field that does not fit.
absl::Status CheckBlockMeans(const BlockMeansParams& params);

absl::Status BlockMeansCpu(const BlockMeansParams& params);

}  // namespace overture::kernels
