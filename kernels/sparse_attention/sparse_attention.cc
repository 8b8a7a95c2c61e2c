#include "kernels/sparse_attention/sparse_attention.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/sparse_attention/launch.h"

namespace overture::kernels {

absl::StatusOr<AttentionKernel> AttentionKernelFor(int32_t capability_major,
                                                   int32_t capability_minor) {
  if (capability_major < 8) {
    return absl::UnimplementedError(absl::StrCat(
        "GPU attention takes compute capability 8.0 or later, the device has ",
        capability_major, ".", capability_minor));
  }
  // sm_90a code runs on 9.0 alone, not on what came after.
  return capability_major == 9 && capability_minor == 0
             ? AttentionKernel::kSm90
             : AttentionKernel::kSm80;
}

absl::Status SupportsSparseAttention(const SparseAttentionParams& params) {
  if (params.dtype != DType::kBF16) {
    return absl::UnimplementedError(
        absl::StrCat("GPU attention takes bf16, got ", Name(params.dtype)));
  }
  if (params.head_dim != 64 && params.head_dim != 96 &&
      params.head_dim != 128) {
    return absl::UnimplementedError(absl::StrCat(
        "GPU attention takes head dim 64, 96 or 128, got ", params.head_dim));
  }
  const int64_t strides[] = {params.stride_q_row,    params.stride_q_head,
                             params.stride_kv_row,   params.stride_kv_head,
                             params.stride_o_row,    params.stride_o_head,
                             params.stride_mean_row, params.stride_mean_head};
  for (int64_t stride : strides) {
    if (stride < 0 || stride % 8 != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "GPU attention takes strides that are multiples of 8 elements, got ",
          stride));
    }
  }
  if (params.num_kv_heads < 1 || params.num_q_heads % params.num_kv_heads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_q_heads ", params.num_q_heads,
        " is not a multiple of num_kv_heads ", params.num_kv_heads));
  }
  return absl::OkStatus();
}

absl::Status SupportsQueryTiles(const SparseAttentionParams& params,
                                const DeviceTilePlan& plan) {
  const int32_t group = params.num_q_heads / params.num_kv_heads;
  if (plan.tile_rows >= kGpuTileRows / kMaxPackedHeads &&
      kGpuTileRows % plan.tile_rows == 0 && group % plan.packed_heads() == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "plan tiles have ", plan.tile_rows, " rows, the GPU kernel takes ",
      kGpuTileRows, " / (a power of two, at most ", kMaxPackedHeads,
      ", that divides the ", group, " query heads of a KV head)"));
}

absl::StatusOr<AttentionKernel> AttentionKernelOfDevice() {
  int device = 0, major = 0, minor = 0;
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaGetDevice(&device));
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(
      &major, cudaDevAttrComputeCapabilityMajor, device));
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(
      &minor, cudaDevAttrComputeCapabilityMinor, device));
  return AttentionKernelFor(major, minor);
}

absl::Status LaunchSparseAttentionWith(AttentionKernel kernel,
                                       const SparseAttentionParams& params,
                                       const DeviceTilePlan& plan,
                                       void* stream) {
  OVERTURE_RETURN_IF_ERROR(SupportsSparseAttention(params));
  OVERTURE_RETURN_IF_ERROR(SupportsQueryTiles(params, plan));
  if (plan.mean_blocks != nullptr &&
      (params.k_means == nullptr || params.v_means == nullptr)) {
    return absl::InvalidArgumentError(
        "the plan corrects blocks, k_means or v_means is null");
  }
  return kernel == AttentionKernel::kSm90
             ? LaunchSparseAttentionSm90(params, plan, stream)
             : LaunchSparseAttentionSm80(params, plan, stream);
}

absl::Status LaunchSparseAttention(const SparseAttentionParams& params,
                                   const DeviceTilePlan& plan, void* stream) {
  OVERTURE_ASSIGN_OR_RETURN(const AttentionKernel kernel,
                            AttentionKernelOfDevice());
  return LaunchSparseAttentionWith(kernel, params, plan, stream);
}

}  // namespace overture::kernels
