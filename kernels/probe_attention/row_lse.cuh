// Pass 1 of probe attention: the logarithm of every row's sum of exponentials.
#pragma once

#include "kernels/probe_attention/block.cuh"
#include "kernels/probe_attention/row_sums.cuh"

namespace overture::kernels::probe {

// Reference and sum of every row over every run's keys.
template <int kSteps>
__global__ void __launch_bounds__(kMaxWarps* kWarp, 1)
    RowPartsKernel(const __grid_constant__ BlockParams p) {
  const Place place(p);
  KeyRing<kSteps> ring(
      p, place,
      reinterpret_cast<__nv_bfloat16*>(raw_shared) +
          place.run_of_block * kStages * KeyRing<kSteps>::kStageElements,
      place.key_begin);
  const Queries<kSteps> q(p, place);
  RowSums sums;
  for (int i = 0; i < p.run_keys; i += kStageKeys) {
    const uint32_t stage = ring.Next();
#pragma unroll
    for (int t = 0; t < kStageKeys; t += kUnitKeys) {
      UnitScores s;
      Score(q, stage + t * KeyStride(kSteps) * 2, place.lane, s);
      Mask(p, place, place.key_begin + i + t, s);
      sums.Add(s, p.scale_log2);
    }
  }
  sums.AddLanes();
  if (place.lane >= 4 || place.run >= p.num_runs) return;
  float2* out =
      p.row_parts +
      (static_cast<int64_t>(place.q_head) * p.num_runs + place.run) * kRows +
      place.row_begin + place.lane * 2;
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    out[i / 2 * kTile + i % 2] = sums.Part(i);
  }
}

// log2 of each row's sum of exponentials: a block per query head.
inline constexpr int kLseThreads = 512;
__global__ void __launch_bounds__(kLseThreads)
    RowLseKernel(const __grid_constant__ BlockParams p) {
  __shared__ float2 parts[kLseThreads];
  const int q_head = blockIdx.y * p.group + p.first_head + blockIdx.x;
  const float2* from =
      p.row_parts + static_cast<int64_t>(q_head) * p.num_runs * kRows;
  float2 total = {-1e30f, 0};
  for (int i = threadIdx.x; i < p.num_runs * kRows; i += kLseThreads) {
    total = MergeParts(total, from[i]);
  }
  parts[threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.x >= kRows) return;
  for (int i = threadIdx.x + kRows; i < kLseThreads; i += kRows) {
    total = MergeParts(total, parts[i]);
  }
  p.row_lse[q_head * kRows + threadIdx.x] = total.x + log2f(total.y);
}

}  // namespace overture::kernels::probe
