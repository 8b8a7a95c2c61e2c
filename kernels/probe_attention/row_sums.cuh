// Sums of exponentials of the rows that a thread has of a warp's 32, over units
// of 16 keys.
#pragma once

#include "kernels/probe_attention/block.cuh"

namespace overture::kernels::probe {

// Of two parts of a row's keys, each a reference, in units of log2, and the sum
// of 2^(exponent - reference).
__device__ __forceinline__ float2 MergeParts(float2 a, float2 b) {
  const float next = fmaxf(a.x, b.x);
  return {next, a.y * ptx::Exp2(a.x - next) + b.y * ptx::Exp2(b.x - next)};
}

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

}  // namespace overture::kernels::probe
