#include <cuda_runtime.h>

#include <cmath>

#include "absl/status/status.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/sparse_attention/launch.h"
#include "kernels/sparse_attention/sm80/kernel.cuh"

namespace overture::kernels {
namespace {

template <int kHeadDim>
absl::Status Launch(const SparseAttentionParams& params,
                    const DeviceTilePlan& plan, cudaStream_t stream) {
  const int num_heads = params.num_q_heads / plan.packed_heads();
  const sm80::KernelParams p = {
      .q = static_cast<const __nv_bfloat16*>(params.q),
      .k = static_cast<const __nv_bfloat16*>(params.k),
      .v = static_cast<const __nv_bfloat16*>(params.v),
      .k_means = static_cast<const __nv_bfloat16*>(params.k_means),
      .v_means = static_cast<const __nv_bfloat16*>(params.v_means),
      .o = static_cast<__nv_bfloat16*>(params.o),
      .stride_q_row = params.stride_q_row,
      .stride_q_head = params.stride_q_head,
      .stride_kv_row = params.stride_kv_row,
      .stride_kv_head = params.stride_kv_head,
      .stride_mean_row = params.stride_mean_row,
      .stride_mean_head = params.stride_mean_head,
      .stride_o_row = params.stride_o_row,
      .stride_o_head = params.stride_o_head,
      .lse = params.lse,
      .scale_log2 = params.scale * static_cast<float>(M_LOG2E),
      .mean_bias = std::log(float{kMeanBlockKeys}) / params.scale,
      .num_heads = num_heads,
      .group = num_heads / params.num_kv_heads,
      .plan = plan};
  constexpr int kShared = sizeof(sm80::SharedStorage<kHeadDim>);
  auto* kernel = &sm80::SparseAttentionKernel<kHeadDim>;
  OVERTURE_RETURN_IF_ERROR(CudaStatus(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kShared),
      "shared memory of the attention kernel"));
  kernel<<<num_heads * plan.num_q_tiles, sm80::kThreads, kShared, stream>>>(p);
  return CudaLaunchStatus("sm80::SparseAttentionKernel");
}

}  // namespace

absl::Status LaunchSparseAttentionSm80(const SparseAttentionParams& params,
                                       const DeviceTilePlan& plan,
                                       void* stream) {
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (params.head_dim) {
    case 64:
      return Launch<64>(params, plan, cuda_stream);
    case 96:
      return Launch<96>(params, plan, cuda_stream);
    default:
      return Launch<128>(params, plan, cuda_stream);
  }
}

}  // namespace overture::kernels
