// The implementations behind LaunchSparseAttention, for it and for tests that
// force one of them. Same contract, less the choice: REQUIRES
// SupportsSparseAttention and, for kSm90, a device of capability 9.0.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/sparse_attention/device_plan.h"
#include "kernels/sparse_attention/params.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace overture::kernels {

// That of the calling thread's current device.
absl::StatusOr<AttentionKernel> AttentionKernelOfDevice();

// INVALID_ARGUMENT unless the plan's query tiles have 128 rows or pack heads of
// one KV head. REQUIRES SupportsSparseAttention(params).
absl::Status SupportsQueryTiles(const SparseAttentionParams& params,
                                const DeviceTilePlan& plan);

absl::Status LaunchSparseAttentionSm80(const SparseAttentionParams& params,
                                       const DeviceTilePlan& plan,
                                       void* stream);
absl::Status LaunchSparseAttentionSm90(const SparseAttentionParams& params,
                                       const DeviceTilePlan& plan,
                                       void* stream);

absl::Status LaunchSparseAttentionWith(AttentionKernel kernel,
                                       const SparseAttentionParams& params,
                                       const DeviceTilePlan& plan,
                                       void* stream);

}  // namespace overture::kernels
