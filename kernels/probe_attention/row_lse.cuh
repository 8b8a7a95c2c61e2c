// Pass 1 of probe attention: the logarithm of every row's sum of exponentials.
#pragma once

#include "kernels/probe_attention/block.cuh"

namespace overture::kernels::probe {

// Sums of exponentials of a thread's rows over its keys, each relative to a
// reference that only moves where a term would reach 2^64: terms are then
// floats of full precision, and 2^31 of them stay finite.
class RowSums {
 public:
  __device__ RowSums() {
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      reference_[i] = -1e30f;
      sum_[i] = 0;
    }
  }

  __device__ __forceinline__ void Add(const UnitScores& s, float scale) {
    float terms[kThreadRows];
    bool large = false;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      terms[i] = Terms(s, i, scale);
      large = large || terms[i] > kLimit;
    }
    if (__any_sync(~0u, large)) {
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        const float top = fmaxf(s[i / 2][i % 2], s[i / 2][2 + i % 2]) * scale;
        const float next = fmaxf(reference_[i], top);
        sum_[i] *= ptx::Exp2(reference_[i] - next);
        reference_[i] = next;
        terms[i] = Terms(s, i, scale);
      }
    }
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) sum_[i] += terms[i];
  }

  // Adds up the lanes that hold the same rows.
  __device__ __forceinline__ void AddLanes() {
    for (int lane = 4; lane < kWarp; lane *= 2) {
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        const float next =
            fmaxf(reference_[i], __shfl_xor_sync(~0u, reference_[i], lane));
        sum_[i] *= ptx::Exp2(reference_[i] - next);
        sum_[i] += __shfl_xor_sync(~0u, sum_[i], lane);
        reference_[i] = next;
      }
    }
  }

  // Reference, in units of log2, and sum of the thread's i-th row.
  __device__ __forceinline__ float2 Part(int i) const {
    return {reference_[i], sum_[i]};
  }

 private:
  static constexpr float kLimit = 0x1p64f;

  // Of both keys of the i-th row.
  __device__ __forceinline__ float Terms(const UnitScores& s, int i,
                                         float scale) const {
    return ptx::Exp2(fmaf(s[i / 2][i % 2], scale, -reference_[i])) +
           ptx::Exp2(fmaf(s[i / 2][2 + i % 2], scale, -reference_[i]));
  }

  float reference_[kThreadRows];  // finite: no inf - inf anywhere
  float sum_[kThreadRows];
};

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
  const auto add = [](float2 a, float2 b) {
    const float next = fmaxf(a.x, b.x);
    return float2{next,
                  a.y * ptx::Exp2(a.x - next) + b.y * ptx::Exp2(b.x - next)};
  };
  float2 total = {-1e30f, 0};
  for (int i = threadIdx.x; i < p.num_runs * kRows; i += kLseThreads) {
    total = add(total, from[i]);
  }
  parts[threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.x >= kRows) return;
  for (int i = threadIdx.x + kRows; i < kLseThreads; i += kRows) {
    total = add(total, parts[i]);
  }
  p.row_lse[q_head * kRows + threadIdx.x] = total.x + log2f(total.y);
}

}  // namespace overture::kernels::probe
