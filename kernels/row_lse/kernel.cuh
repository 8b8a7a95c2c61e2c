// Device code of row LSE. The query heads of a KV head stand packed: row r of
// its rows is query head r % group of sampled row r / group, so that one read
// of a key serves up to 32 of them.
//
// A warp has one run of keys and 32 rows, which stay in its registers as the
// right operand of mma.sync; 16 keys at a time are the left one, straight from
// global memory. A product over the head dim may take its elements in any order
// as long as both operands do: so a lane loads 16 bytes of a key, of which its
// pairs serve two instructions, and nothing passes through shared memory.
//
// The bound is reading the keys once per 32 rows: 268 MB, about 70 us, for a
// layer of 128K tokens with 8 KV heads.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/probe_attention/row_sums.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/row_lse/row_lse_params.h"

namespace overture::kernels::row_lse {

inline constexpr int kWarps = 4;  // of a block
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kRows = probe::kWarpRows;      // of a warp: 32
inline constexpr int kUnitKeys = probe::kUnitKeys;  // 16
inline constexpr int kMergeThreads = 512;
// Runs times KV heads times blocks of rows, about: twice what an H200 holds at
// once, so that a straggler weighs half.
inline constexpr int kWarpsInAll = 132 * 12 * 2;
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2 = 0x1.62e43p-1f;

struct Params {
  const __nv_bfloat16* q;  // [sampled rows, q_heads, head_dim]
  const __nv_bfloat16* k;  // [kv_heads, kv_len, head_dim]
  int64_t stride_q_row;    // elements
  int64_t stride_q_head;
  int64_t stride_k_row;
  int64_t stride_k_head;
  int32_t group;  // query heads of a KV head
  int32_t num_q_heads;
  int32_t num_rows;  // packed, of a KV head
  int32_t num_runs;
  int32_t run_keys;  // a multiple of kUnitKeys
  int32_t last_key;  // that any row sees
  float scale_log2;
  float2* parts;  // [kv_heads, row blocks, num_runs, kRows]: reference, sum
  float* lse;     // [sampled rows, q_heads]
  int64_t positions[kMaxLseRows];
};

// 16 bytes of a key or query as pairs of elements.
union Pairs {
  uint4 vector;
  uint32_t pairs[4];
};

__device__ __forceinline__ Pairs LoadPairs(const __nv_bfloat16* from) {
  return {.vector = __ldg(reinterpret_cast<const uint4*>(from))};
}

__device__ __forceinline__ float2* PartsOf(const Params& p, int kv_head,
                                           int row_block, int num_row_blocks) {
  return p.parts +
         (static_cast<int64_t>(kv_head) * num_row_blocks + row_block) *
             p.num_runs * kRows;
}

// Reference and sum of every row over one run's keys. kChunks of 32 elements
// are the head dim.
template <int kChunks>
__global__ void __launch_bounds__(kThreads, 3)
    PartsKernel(const __grid_constant__ Params p) {
  const int lane = threadIdx.x % 32;
  const int run = blockIdx.x * kWarps + threadIdx.x / 32;
  const int kv_head = blockIdx.y;
  const int row_begin = blockIdx.z * kRows;
  if (run >= p.num_runs) return;
  const int column = lane % 4 * 8;

  Pairs q[kChunks][probe::kRowTiles];  // of rows lane / 4 + 8 b
#pragma unroll
  for (int b = 0; b < probe::kRowTiles; ++b) {
    const int row = row_begin + b * probe::kTile + lane / 4;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      q[c][b].vector = uint4{0, 0, 0, 0};
      if (row < p.num_rows) {
        q[c][b] =
            LoadPairs(p.q + row / p.group * p.stride_q_row +
                      (kv_head * p.group + row % p.group) * p.stride_q_head +
                      c * 32 + column);
      }
    }
  }
  // Of the thread's rows; one that does not exist sees everything.
  int positions[probe::kThreadRows];
  int first_position = p.last_key;
#pragma unroll
  for (int i = 0; i < probe::kThreadRows; ++i) {
    const int row = row_begin + i / 2 * probe::kTile + lane % 4 * 2 + i % 2;
    positions[i] = row < p.num_rows
                       ? static_cast<int>(p.positions[row / p.group])
                       : p.last_key;
    first_position = min(first_position, positions[i]);
  }

  const __nv_bfloat16* keys = p.k + kv_head * p.stride_k_head + column;
  const int begin = run * p.run_keys;
  const int end = min(begin + p.run_keys, p.last_key + 1);
  probe::RowSums sums;
  for (int key = begin; key < end; key += kUnitKeys) {
    // The last unit may have fewer: the others repeat the last key, masked.
    const __nv_bfloat16* low =
        keys + min(key + lane / 4, p.last_key) * p.stride_k_row;
    const __nv_bfloat16* high =
        keys + min(key + lane / 4 + 8, p.last_key) * p.stride_k_row;
    Pairs a[kChunks][2];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      a[c][0] = LoadPairs(low + c * 32);
      a[c][1] = LoadPairs(high + c * 32);
    }
    probe::UnitScores s = {};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t operand[4] = {
            a[c][0].pairs[2 * half], a[c][1].pairs[2 * half],
            a[c][0].pairs[2 * half + 1], a[c][1].pairs[2 * half + 1]};
#pragma unroll
        for (int b = 0; b < probe::kRowTiles; ++b) {
          ptx::MmaM16N8K16(s[b], operand, q[c][b].pairs[2 * half],
                           q[c][b].pairs[2 * half + 1]);
        }
      }
    }
    if (key + kUnitKeys - 1 > first_position) {
#pragma unroll
      for (int i = 0; i < probe::kScores; ++i) {
        if (key + i % 4 / 2 * 8 + lane / 4 > positions[i / 4 * 2 + i % 2]) {
          s[i / 4][i % 4] = -INFINITY;
        }
      }
    }
    sums.Add(s, p.scale_log2);
  }
  sums.AddLanes();
  if (lane >= 4) return;
  float2* out =
      PartsOf(p, kv_head, blockIdx.z, gridDim.z) + int64_t{run} * kRows;
#pragma unroll
  for (int i = 0; i < probe::kThreadRows; ++i) {
    out[i / 2 * probe::kTile + lane * 2 + i % 2] = sums.Part(i);
  }
}

// The logarithm of each row's sum over all runs: a block per KV head and block
// of rows.
__global__ void __launch_bounds__(kMergeThreads)
    MergeKernel(const __grid_constant__ Params p) {
  __shared__ float2 shared[kMergeThreads];
  const int kv_head = blockIdx.x;
  const float2* parts = PartsOf(p, kv_head, blockIdx.y, gridDim.y);
  float2 total = {-1e30f, 0};
  for (int i = threadIdx.x; i < p.num_runs * kRows; i += kMergeThreads) {
    total = probe::MergeParts(total, parts[i]);
  }
  shared[threadIdx.x] = total;
  __syncthreads();
  const int row = blockIdx.y * kRows + threadIdx.x;
  if (threadIdx.x >= kRows || row >= p.num_rows) return;
  for (int i = threadIdx.x + kRows; i < kMergeThreads; i += kRows) {
    total = probe::MergeParts(total, shared[i]);
  }
  p.lse[row / p.group * p.num_q_heads + kv_head * p.group + row % p.group] =
      (total.x + log2f(total.y)) * kLn2;
}

}  // namespace overture::kernels::row_lse
