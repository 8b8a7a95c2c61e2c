// The online softmax on accumulators of 16 x n products, as wgmma and mma.sync
// lay them out: a thread holds two rows, r and r + 8, of which d[4 b + 2 r +
// 0..1] are two columns of column block b; four neighbouring lanes share a row.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/ptx/copy.cuh"

namespace overture::kernels {

__device__ __forceinline__ uint32_t Pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Scores to the layout of a product's left operand.
template <int kCount>
__device__ __forceinline__ void ToBf16(const float (&scores)[kCount],
                                       uint32_t (&probs)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    probs[i] = Pack(scores[2 * i], scores[2 * i + 1]);
  }
}

template <int kCount>
__device__ __forceinline__ void Rescale(float (&o)[kCount],
                                        const float (&scale)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) o[i] *= scale[(i / 2) % 2];
}

// State of a thread's two rows, in units of log2.
//
// Probabilities are relative to a reference that follows the running maximum
// lazily: it moves only when a score exceeds it by more than kSlack, so most
// steps need no cross-thread maximum, no rescaling, and start their
// exponentials at once. Probabilities then reach 2^kSlack, which costs bf16
// and the fp32 sums no relative precision.
// Source: FlashAttention-4's conditional rescaling, with the maximum kept per
// thread.
struct Softmax {
  static constexpr float kSlack = 8.0f;
  // Far below any score, yet finite: no inf - inf anywhere.
  float reference[2] = {-1e30f, -1e30f};
  float row_sum[2] = {0, 0};  // this thread's columns only

  // Turns scores into probabilities. Returns true, for the whole warp, if
  // earlier outputs must be multiplied with `scale`.
  template <int kCount>
  __device__ __forceinline__ bool Update(float (&scores)[kCount],
                                         float scale_log2, float (&scale)[2]) {
    float top[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float tops[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        tops[i % 4] = fmaxf(tops[i % 4], scores[4 * (i / 2) + 2 * r + i % 2]);
      }
      top[r] =
          fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3])) * scale_log2;
    }
    const bool moved = __any_sync(
        ~0u, top[0] > reference[0] + kSlack || top[1] > reference[1] + kSlack);
    if (moved) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
        const float next = fmaxf(reference[r], top[r]);
        scale[r] = ptx::Exp2(reference[r] - next);
        row_sum[r] *= scale[r];
        reference[r] = next;
      }
    }
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const int r = i % 2;
      float& low = scores[2 * i];
      float& high = scores[2 * i + 1];
      low = ptx::Exp2(fmaf(low, scale_log2, -reference[r]));
      high = ptx::Exp2(fmaf(high, scale_log2, -reference[r]));
      row_sum[r] += low + high;
    }
    return moved;
  }

  // After the last step: what the outputs are to be multiplied with, and the
  // log-sum-exp (natural log); 0 and -inf for a row without keys.
  __device__ __forceinline__ void Finish(float (&inverse)[2],
                                         float (&lse)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = row_sum[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      inverse[r] = sum > 0 ? 1.0f / sum : 0.0f;
      lse[r] = sum > 0 ? (reference[r] + log2f(sum)) * 0.69314718055994531f
                       : -INFINITY;
    }
  }
};

}  // namespace overture::kernels
