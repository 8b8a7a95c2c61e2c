// The kernel behind LaunchFp8Attention: same contract, REQUIRES what that one
// checks.
#pragma once

#include "absl/status/status.h"
#include "kernels/fp8_attention/fp8_attention.h"

namespace overture::kernels {

absl::Status LaunchFp8AttentionSm90(const SparseAttentionParams& params,
                                    const DeviceTilePlan& plan, const Fp8Kv& kv,
                                    void* scratch, void* stream);

}  // namespace overture::kernels
