// Pass 1 of probe attention on sm_90a: every row's sum of exponentials over
// every run of keys.
#pragma once

#include "kernels/probe_attention/sm90/frame.cuh"

namespace overture::kernels::probe::sm90 {

// Sums of exponentials of a thread's rows over its keys, each relative to a
// reference that only moves where a term would reach 2^64: terms are then
// floats of full precision, and 2^31 of them stay finite.
class HeadRowSums {
 public:
  __device__ HeadRowSums() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      reference_[i] = -1e30f;
      sum_[i] = 0;
    }
  }

  __device__ __forceinline__ void Add(const TileScores& s, float scale) {
#pragma unroll
    for (int first = 0; first < kCount; first += kAtOnce) {
      float terms[kAtOnce];
      bool large = false;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        terms[i] = Terms(s, first + i, scale);
        large = large || terms[i] > kLimit;
      }
      if (__any_sync(~0u, large)) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int row = first + i;
          const float top = fmaxf(Score(s, row, 0), Score(s, row, 1)) * scale;
          const float next = fmaxf(reference_[row], top);
          sum_[row] *= ptx::Exp2(reference_[row] - next);
          reference_[row] = next;
          terms[i] = Terms(s, row, scale);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) sum_[first + i] += terms[i];
    }
  }

  // Adds up the lanes that hold the same rows.
  __device__ __forceinline__ void AddLanes() {
    for (int lane = 4; lane < kWarp; lane *= 2) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float next =
            fmaxf(reference_[i], __shfl_xor_sync(~0u, reference_[i], lane));
        sum_[i] *= ptx::Exp2(reference_[i] - next);
        sum_[i] += __shfl_xor_sync(~0u, sum_[i], lane);
        reference_[i] = next;
      }
    }
  }

  // Reference, in units of log2, and sum of the thread's row i.
  __device__ __forceinline__ float2 Part(int i) const {
    return {reference_[i], sum_[i]};
  }

 private:
  static constexpr float kLimit = 0x1p64f;
  static constexpr int kCount = kTileThreadRows;
  static constexpr int kAtOnce = 8;  // terms in registers

  // Of row `row` of the thread and key 8 g + l / 4.
  static __device__ __forceinline__ float Score(const TileScores& s, int row,
                                                int g) {
    return s[row / 2 * 4 + 2 * g + row % 2];
  }
  // Of both keys.
  __device__ __forceinline__ float Terms(const TileScores& s, int row,
                                         float scale) const {
    return ptx::Exp2(fmaf(Score(s, row, 0), scale, -reference_[row])) +
           ptx::Exp2(fmaf(Score(s, row, 1), scale, -reference_[row]));
  }

  float reference_[kCount];  // finite: no inf - inf anywhere
  float sum_[kCount];
};

template <int kSteps>
__global__ void __launch_bounds__(kMaxThreads, 1)
    RowPartsKernel(const __grid_constant__ KernelParams params) {
  extern __shared__ __align__(1024) uint8_t shared[];
  auto& s = *reinterpret_cast<Shared<kSteps>*>(shared);
  const BlockParams& p = params.block;
  const int num_steps = p.run_keys / kStepKeys;
  RunRoles(params, s, num_steps * kStepTiles, 0, [&] {
    const Place place(p);
    HeadRowSums sums;
    int key = place.run * p.run_keys;
    ForEachTile(
        place, s, num_steps,
        [&](TileScores& scores, int) {
          Mask(p, place, key, scores);
          sums.Add(scores, p.scale_log2);
          key += kUnitKeys;
        },
        [] {});
    sums.AddLanes();
    if (place.lane >= 4 || place.run >= p.num_runs) return;
    float2* out =
        p.row_parts + (int64_t{place.q_head} * p.num_runs + place.run) * kRows;
#pragma unroll
    for (int i = 0; i < kTileThreadRows; ++i) {
      out[place.Row(i)] = sums.Part(i);
    }
  });
}

}  // namespace overture::kernels::probe::sm90
