#include <cuda_runtime.h>

#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/fp8_attention/consumer.cuh"
#include "kernels/fp8_attention/launch.h"
#include "kernels/fp8_attention/producer.cuh"
#include "kernels/fp8_attention/quantize.cuh"

namespace overture::kernels {
namespace sm90 {

// One persistent block per multiprocessor, as in sparse_attention/kernel.cuh.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    Fp8AttentionKernel(const __grid_constant__ Fp8KernelParams p) {
  using T = Fp8Traits<kHeadDim>;
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& s = *reinterpret_cast<typename T::SharedStorage*>(raw);
  if (threadIdx.x == 0) {
    // Every consumer thread reads its part of Q and a step's scales, and frees
    // them.
    for (int i = 0; i < T::kQueryStages; ++i) {
      ptx::BarrierInit(&s.q_full[i], 1);
      ptx::BarrierInit(&s.q_empty[i], 128 * kNumConsumers);
    }
    for (int i = 0; i < T::kStages; ++i) {
      ptx::BarrierInit(&s.full[i], 1);
      ptx::BarrierInit(&s.empty[i], 128 * kNumConsumers);
    }
    ptx::FenceBarrierInit();
  }
  InitOnes<T>(s, threadIdx.x);
  __syncthreads();
  const auto role = static_cast<WarpGroupRole>(
      __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0));
  if (role == WarpGroupRole::kProducer) {
    ptx::RegistersDecrease<kFp8ProducerRegisters>();
    if (threadIdx.x < 32) ProduceFp8<T>(p, s);
  } else {
    ptx::RegistersIncrease<kFp8ConsumerRegisters>();
    ConsumeFp8<T>(p, s, role == WarpGroupRole::kConsumer0 ? 0 : 1);
  }
}

}  // namespace sm90

absl::Status LaunchFp8AttentionSm90(const SparseAttentionParams& params,
                                    const DeviceTilePlan& plan, const Fp8Kv& kv,
                                    void* scratch, void* stream) {
  constexpr int kHeadDim = 128;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const int32_t num_heads = params.num_q_heads / plan.packed_heads();
  const int32_t group = num_heads / params.num_kv_heads;
  const QuantizedQueries queries =
      QueriesIn(scratch, kHeadDim, int64_t{num_heads} * plan.num_q_tiles);
  OVERTURE_RETURN_IF_ERROR(
      LaunchQuantizeQueries({.q = static_cast<const __nv_bfloat16*>(params.q),
                             .mean = kv.mean,
                             .stride_row = params.stride_q_row,
                             .stride_head = params.stride_q_head,
                             .scale_log2 = fp8::ScaleLog2(params.scale),
                             .num_heads = num_heads,
                             .group = group,
                             .plan = plan,
                             .out = queries},
                            cuda_stream));

  using T = sm90::Fp8Traits<kHeadDim>;
  const sm90::Fp8KernelParams p = {
      .q = queries.codes,
      .k = kv.k,
      .v = kv.v,
      .kv_scales = kv.scales,
      .q_scale = queries.scale,
      .q_offset = queries.offset,
      .o = static_cast<__nv_bfloat16*>(params.o),
      .stride_o_row = params.stride_o_row,
      .stride_o_head = params.stride_o_head,
      .lse = params.lse,
      .num_kv_tiles = kv.num_tiles,
      .valid_kv_tiles = static_cast<int32_t>(
          (plan.kv_len + fp8::kTileKeys - 1) / fp8::kTileKeys),
      .num_heads = num_heads,
      .group = group,
      .plan = plan};
  constexpr int kShared = sizeof(typename T::SharedStorage);
  auto* kernel = &sm90::Fp8AttentionKernel<kHeadDim>;
  OVERTURE_RETURN_IF_ERROR(CudaStatus(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kShared),
      "shared memory of the FP8 attention kernel"));
  int device = 0, num_sms = 0;
  OVERTURE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "device"));
  OVERTURE_RETURN_IF_ERROR(CudaStatus(
      cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device),
      "multiprocessors"));
  OVERTURE_RETURN_IF_ERROR(CudaStatus(
      cudaMemsetAsync(plan.next_item, 0, sizeof(int32_t), cuda_stream),
      "counter"));
  kernel<<<num_sms, sm90::kThreads, kShared, cuda_stream>>>(p);
  return CudaLaunchStatus("Fp8AttentionKernel");
}

}  // namespace overture::kernels
