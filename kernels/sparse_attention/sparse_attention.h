// Attention over any tile plan on the GPU (sm_90a). Plain C++ header.
//
// Launches on `stream` and returns; borrows everything until the stream has
// passed the launch. INVALID_ARGUMENT / UNIMPLEMENTED name what does not fit.
#pragma once

#include "absl/status/status.h"
#include "kernels/sparse_attention/device_plan.h"
#include "kernels/sparse_attention/params.h"

namespace overture::kernels {

// OK if LaunchSparseAttention accepts these shapes: bf16, head dim 64, 96 or
// 128, all strides a multiple of 8 elements. REQUIRES of a launch, not checked
// here: pointers 16-byte aligned (a tensor map refuses others) and compute
// capability 9.0, which the back end checks once when it is made.
absl::Status SupportsSparseAttention(const SparseAttentionParams& params);

// `params.plan` is ignored; `plan` lives on the device. `stream` is a
// cudaStream_t.
absl::Status LaunchSparseAttention(const SparseAttentionParams& params,
                                   const DeviceTilePlan& plan, void* stream);

}  // namespace overture::kernels
