// Attention over a tile plan on sm_90a: one producer warpgroup and two consumer
// warpgroups per block, one persistent block per multiprocessor, work items
// taken from a counter, most expensive first.
#pragma once

#include "kernels/sparse_attention/consumer.cuh"
#include "kernels/sparse_attention/producer.cuh"

namespace overture::kernels::sm90 {

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    SparseAttentionKernel(const __grid_constant__ KernelParams p) {
  using T = Traits<kHeadDim>;
  // Dynamic shared memory starts 1,024-byte aligned when no static one exists;
  // aligning by hand would hide the address space from the compiler.
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& s = *reinterpret_cast<typename T::SharedStorage*>(raw);
  if (threadIdx.x == 0) {
    ptx::PrefetchTensorMap(&p.q);
    ptx::PrefetchTensorMap(&p.k);
    ptx::PrefetchTensorMap(&p.v);
    // Every warp that reads an item or a step frees it: the consumers' and, of
    // items, the three producer warps that do not write it.
    ptx::BarrierInit(&s.q_full, 1);
    ptx::BarrierInit(&s.q_empty, 4 * kNumConsumers + 3);
    for (int i = 0; i < T::kStages; ++i) {
      ptx::BarrierInit(&s.k_full[i], 1);
      ptx::BarrierInit(&s.v_full[i], 1);
      ptx::BarrierInit(&s.k_empty[i], 4 * kNumConsumers);
      ptx::BarrierInit(&s.v_empty[i], 4 * kNumConsumers);
    }
    ptx::FenceBarrierInit();
  }
  __syncthreads();
  const auto role = static_cast<WarpGroupRole>(
      __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0));
  if (role == WarpGroupRole::kProducer) {
    ptx::RegistersDecrease<kProducerRegisters>();
    Produce<kHeadDim>(p, s);
  } else {
    ptx::RegistersIncrease<kConsumerRegisters>();
    Consume<kHeadDim>(p, s, role == WarpGroupRole::kConsumer0 ? 0 : 1);
  }
}

}  // namespace overture::kernels::sm90
