// Attention over any tile plan on the GPU. Plain C++ header.
//
// Two kernels: one for Hopper (TMA and wgmma, built for sm_90a), one for every
// device of compute capability 8.0 and later (mma.sync and cp.async). Their
// results differ in the order of fp32 sums only.
//
// Launches on `stream` and returns; borrows everything until the stream has
// passed the launch. INVALID_ARGUMENT / UNIMPLEMENTED name what does not fit.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/sparse_attention/device_plan.h"
#include "kernels/sparse_attention/params.h"

namespace overture::kernels {

enum class AttentionKernel { kSm80, kSm90 };

// The kernel that a device of this compute capability runs; UNIMPLEMENTED below
// 8.0, which has no bf16 products.
absl::StatusOr<AttentionKernel> AttentionKernelFor(int32_t capability_major,
                                                   int32_t capability_minor);

// OK if LaunchSparseAttention accepts these shapes: bf16, head dim 64, 96 or
// 128, all strides a multiple of 8 elements. REQUIRES of a launch, not checked
// here: pointers 16-byte aligned.
absl::Status SupportsSparseAttention(const SparseAttentionParams& params);

// On the calling thread's current device. `params.plan` is ignored; `plan`
// lives on the device. `stream` is a cudaStream_t.
absl::Status LaunchSparseAttention(const SparseAttentionParams& params,
                                   const DeviceTilePlan& plan, void* stream);

}  // namespace overture::kernels
