// Blocks by pooled scores on the GPU, all heads and query tiles in one launch:
// the twin of ChooseBlocksCpu. Scores are off by roundings; on equal scores it
// keeps the same blocks. Plain C++ header.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/selectors/block_scores.h"

namespace overture::kernels {

// OK if this device scores blocks of such heads. UNIMPLEMENTED for a head dim
// other than 64, 96 and 128, more than 128 query heads, or a compute capability
// other than 9.0.
absl::Status SupportsBlockScores(int32_t num_q_heads, int32_t head_dim);

// Writes the bits of BlockSets, [num_q_heads, num_q_tiles,
// BlockWords(num_blocks())], every word of them; `scores` as ChooseBlocksCpu,
// may be null. Pointers of `params` are on the device and 16-byte aligned.
// Asynchronous on `stream` (a cudaStream_t); borrows all until the stream has
// passed the launch.
//
// As CheckBlockScores and SupportsBlockScores; UNIMPLEMENTED for a dtype other
// than bf16 and for more than 2^24 keys; INVALID_ARGUMENT for strides that are
// not multiples of 8 elements.
absl::Status LaunchBlockScores(const BlockScoreParams& params,
                               absl::Span<const BlockRule> rules,
                               uint32_t* bits, float* scores, void* stream);

}  // namespace overture::kernels
