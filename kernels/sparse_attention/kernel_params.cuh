// What every role of the sm_90a attention kernel knows: its parameters, the
// ring of stages, and how work items and steps are read from shared memory.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/sparse_attention/device_plan.h"
#include "kernels/sparse_attention/traits.cuh"

namespace overture::kernels::sm90 {

struct KernelParams {
  CUtensorMap q;   // (head_dim, q_len, q_heads), box (64, 128, 1)
  CUtensorMap k;   // (head_dim, kv_len, kv_heads), box (64, 64, 1)
  CUtensorMap v;   // as k
  CUtensorMap k2;  // as k, box (64, 128, 1): two adjacent tiles at once
  CUtensorMap v2;
  CUtensorMap o;                // (head_dim, q_len, q_heads), box (64, 64, 1)
  const __nv_bfloat16* k_data;  // for gathers, [kv_heads, kv_len, head_dim]
  const __nv_bfloat16* v_data;
  __nv_bfloat16* o_data;  // for ragged edges
  int64_t stride_kv_row;  // elements
  int64_t stride_kv_head;
  int64_t stride_o_row;
  int64_t stride_o_head;
  float* lse;        // [q_heads, q_len] or null
  float scale_log2;  // softmax scale * log2(e)
  int32_t num_q_heads;
  int32_t group;  // query heads per KV head
  DeviceTilePlan plan;
};

// Position in the ring of K/V stages.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// The item in registers that the compiler knows to be the same for a whole
// warp: without it wgmma is serialised.
__device__ __forceinline__ ItemInfo ReadItem(const ItemInfo& shared) {
  return {__shfl_sync(~0u, shared.q_head, 0),
          __shfl_sync(~0u, shared.q_tile, 0),
          __shfl_sync(~0u, shared.num_steps, 0)};
}

__device__ __forceinline__ StepInfo ReadStep(const StepInfo& shared) {
  const int4 step = *reinterpret_cast<const int4*>(&shared);
  return {{__shfl_sync(~0u, step.x, 0), __shfl_sync(~0u, step.y, 0)},
          __shfl_sync(~0u, step.z, 0),
          __shfl_sync(~0u, step.w, 0)};
}

// Which cell of the plan a work item reads.
__device__ __forceinline__ int64_t CellOf(const KernelParams& p, int q_head,
                                          int q_tile) {
  const int list = p.plan.num_lists == 1               ? 0
                   : p.plan.num_lists == p.num_q_heads ? q_head
                                                       : q_head / p.group;
  return static_cast<int64_t>(list) * p.plan.num_q_tiles + q_tile;
}

}  // namespace overture::kernels::sm90
