#include <cuda.h>
#include <cuda_runtime.h>

#include <cmath>

#include "absl/status/status.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/ptx/tensor_map.h"
#include "kernels/sparse_attention/kernel.cuh"
#include "kernels/sparse_attention/launch.h"

namespace overture::kernels {
namespace {

template <int kHeadDim>
absl::Status Launch(const SparseAttentionParams& params,
                    const DeviceTilePlan& plan, cudaStream_t stream) {
  using T = sm90::Traits<kHeadDim>;
  sm90::KernelParams p;
  const auto kv_map = [&](const void* data, int rows, CUtensorMap* map) {
    return MakeTensorMap(data,
                         {{kHeadDim, 1, sm90::kPanel},
                          {plan.kv_len, params.stride_kv_row, rows},
                          {params.num_kv_heads, params.stride_kv_head, 1}},
                         map);
  };
  const int packed = plan.packed_heads();
  const auto query_map = [&](const void* data, int64_t stride_row,
                             int64_t stride_head, int rows, CUtensorMap* map) {
    return MakeTensorMap(
        data,
        {{kHeadDim, 1, sm90::kPanel},
         {packed, stride_head, packed},
         {plan.q_len, stride_row, rows / packed},
         {params.num_q_heads / packed, stride_head * packed, 1}},
        map);
  };
  OVERTURE_RETURN_IF_ERROR(kv_map(params.k, sm90::kSubTile, &p.k));
  OVERTURE_RETURN_IF_ERROR(kv_map(params.k, sm90::kBlockN, &p.k2));
  OVERTURE_RETURN_IF_ERROR(kv_map(params.v, sm90::kSubTile, &p.v));
  OVERTURE_RETURN_IF_ERROR(kv_map(params.v, sm90::kBlockN, &p.v2));
  OVERTURE_RETURN_IF_ERROR(query_map(params.q, params.stride_q_row,
                                     params.stride_q_head, sm90::kBlockM,
                                     &p.q));
  OVERTURE_RETURN_IF_ERROR(
      query_map(params.o, params.stride_o_row, params.stride_o_head, 64, &p.o));
  p.k_data = static_cast<const __nv_bfloat16*>(params.k);
  p.v_data = static_cast<const __nv_bfloat16*>(params.v);
  p.k_means = static_cast<const __nv_bfloat16*>(params.k_means);
  p.v_means = static_cast<const __nv_bfloat16*>(params.v_means);
  p.stride_mean_row = params.stride_mean_row;
  p.stride_mean_head = params.stride_mean_head;
  p.mean_bias = std::log(float{kMeanBlockKeys}) / params.scale;
  p.stride_kv_row = params.stride_kv_row;
  p.stride_kv_head = params.stride_kv_head;
  p.o_data = static_cast<__nv_bfloat16*>(params.o);
  p.stride_o_row = params.stride_o_row;
  p.stride_o_head = params.stride_o_head;
  p.lse = params.lse;
  p.scale_log2 = params.scale * static_cast<float>(M_LOG2E);
  p.num_heads = params.num_q_heads / packed;
  p.group = p.num_heads / params.num_kv_heads;
  p.plan = plan;

  constexpr int kShared = sizeof(typename T::SharedStorage);
  auto* kernel = &sm90::SparseAttentionKernel<kHeadDim>;
  OVERTURE_RETURN_IF_ERROR(CudaStatus(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kShared),
      "shared memory of the attention kernel"));
  int device = 0, num_sms = 0;
  OVERTURE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "device"));
  OVERTURE_RETURN_IF_ERROR(CudaStatus(
      cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device),
      "multiprocessors"));
  OVERTURE_RETURN_IF_ERROR(CudaStatus(
      cudaMemsetAsync(plan.next_item, 0, sizeof(int32_t), stream), "counter"));
  kernel<<<num_sms, sm90::kThreads, kShared, stream>>>(p);
  return CudaLaunchStatus("SparseAttentionKernel");
}

}  // namespace

absl::Status LaunchSparseAttentionSm90(const SparseAttentionParams& params,
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
