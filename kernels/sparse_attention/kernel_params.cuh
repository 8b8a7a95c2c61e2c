// What every role of the sm_90a attention kernel knows: its parameters, the
// ring of stages, and how work items and steps are read from shared memory.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/ptx/copy.cuh"
#include "kernels/sparse_attention/device_plan.h"
#include "kernels/sparse_attention/query_tile.cuh"
#include "kernels/sparse_attention/traits.cuh"

namespace overture::kernels::sm90 {

struct KernelParams {
  // (head_dim, packed, q_len, heads), box (64, packed, 128 / packed, 1)
  CUtensorMap q;
  CUtensorMap k;   // (head_dim, kv_len, kv_heads), box (64, 64, 1)
  CUtensorMap v;   // as k
  CUtensorMap k2;  // as k, box (64, 128, 1): two adjacent tiles at once
  CUtensorMap v2;
  CUtensorMap o;                // as q, box of 64 rows
  const __nv_bfloat16* k_data;  // for gathers, [kv_heads, kv_len, head_dim]
  const __nv_bfloat16* v_data;
  const __nv_bfloat16* k_means;  // [kv_heads, blocks, head_dim]
  const __nv_bfloat16* v_means;
  __nv_bfloat16* o_data;  // for ragged edges
  int64_t stride_kv_row;  // elements
  int64_t stride_kv_head;
  int64_t stride_mean_row;
  int64_t stride_mean_head;
  int64_t stride_o_row;
  int64_t stride_o_head;
  float* lse;         // [q_heads, q_len] or null
  float scale_log2;   // softmax scale * log2(e)
  float mean_bias;    // log of a block's size in units of unscaled scores
  int32_t num_heads;  // of work items: query heads / packed heads
  int32_t group;      // of those per KV head
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
//
// Lane 0 alone reads the slot, and lane 0 it is that later tells the producer
// that the slot is free: an arrival orders the reads of the arriving thread,
// not those of other lanes before a shuffle.
__device__ __forceinline__ ItemInfo ReadItem(const ItemInfo& shared, int lane) {
  const int4 item = ptx::LoadShared16(&shared, lane == 0);
  return {__shfl_sync(~0u, item.x, 0), __shfl_sync(~0u, item.y, 0),
          __shfl_sync(~0u, item.z, 0)};
}

__device__ __forceinline__ StepInfo ReadStep(const StepInfo& shared, int lane) {
  const int4 step = ptx::LoadShared16(&shared, lane == 0);
  return {{__shfl_sync(~0u, step.x, 0), __shfl_sync(~0u, step.y, 0)},
          __shfl_sync(~0u, step.z, 0),
          __shfl_sync(~0u, step.w, 0)};
}

}  // namespace overture::kernels::sm90
