// Both passes of probe attention on sm_90a: what probe_attention.cu launches
// where the device and the group of heads suit them.
#pragma once

#include "absl/status/status.h"
#include "kernels/probe_attention/block.cuh"

namespace overture::kernels::probe::sm90 {

// Heads of a group that share a launch, a warpgroup each: with fewer than three
// the other kernel, whose warps share more evenly, is faster.
inline constexpr int kMinHeads = 3;
inline constexpr int kMaxHeads = 4;

// Cuts `p` into runs of keys, no more than `max_runs`, for all
// multiprocessors.
void CutRuns(int num_kv_heads, int num_sms, int64_t max_runs, BlockParams& p);

// Pass 1 writes p.row_parts, pass 2 the outputs by p.row_lse.
absl::Status LaunchRowParts(const BlockParams& p, int num_kv_heads,
                            cudaStream_t stream);
absl::Status LaunchSums(const BlockParams& p, int num_kv_heads,
                        cudaStream_t stream);

}  // namespace overture::kernels::probe::sm90
