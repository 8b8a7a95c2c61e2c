// Attention over a tile plan on any device from sm_80 on: one block of eight
// warps per work item, 16 query rows a warp, keys in steps of 64 through two
// stages of shared memory that cp.async fills. Simple where the sm_90a kernel
// is fast; the plan, the softmax and the results are the same.
//
// Source of the schedule: FlashAttention-2, arXiv 2307.08691, section 3.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/sparse_attention/device_plan.h"
#include "kernels/sparse_attention/query_tile.cuh"
#include "kernels/sparse_attention/softmax.cuh"

namespace overture::kernels::sm80 {

inline constexpr int kBlockM = 128;  // query rows of a work item
inline constexpr int kBlockN = 64;   // keys of a step: a tile of the plan
inline constexpr int kWarps = kBlockM / 16;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kPanel = 64;  // bf16 columns of a swizzled panel

struct KernelParams {
  const __nv_bfloat16* q;  // [q_len, q_heads, head_dim] by strides
  const __nv_bfloat16* k;  // [kv_heads, kv_len, head_dim] by strides
  const __nv_bfloat16* v;
  const __nv_bfloat16* k_means;  // [kv_heads, blocks, head_dim] by strides
  const __nv_bfloat16* v_means;
  __nv_bfloat16* o;      // as q
  int64_t stride_q_row;  // elements
  int64_t stride_q_head;
  int64_t stride_kv_row;
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

// 96 KB at head dims 96 and 128: fits the 99 KB of sm_86 and sm_89, too.
template <int kHeadDim>
struct SharedStorage {
  static_assert(kHeadDim == 64 || kHeadDim == 96 || kHeadDim == 128,
                "head dims 64, 96 and 128");
  static constexpr int kPanels = (kHeadDim + kPanel - 1) / kPanel;
  alignas(128) uint16_t q[kPanels * kBlockM * kPanel];
  alignas(128) uint16_t k[2][kPanels * kBlockN * kPanel];
  alignas(128) uint16_t v[2][kPanels * kBlockN * kPanel];
};
static_assert(sizeof(SharedStorage<128>) <= 99 * 1024);

// Address of 16-byte chunk `chunk` of a row: panels of 128-byte rows whose
// chunks are permuted by the row, so that ldmatrix meets no bank conflict.
template <int kRows>
__device__ __forceinline__ uint32_t ChunkAddress(uint32_t base, int row,
                                                 int chunk) {
  return base + (chunk >> 3) * (kRows * kPanel * 2) + row * (kPanel * 2) +
         (((chunk & 7) ^ (row & 7)) << 4);
}

// Starts copying kRows rows; offset_of(row) is where a row begins in `data`,
// or -1 for zeros.
template <int kHeadDim, int kRows, typename OffsetOf>
__device__ __forceinline__ void CopyRows(const __nv_bfloat16* data,
                                         uint16_t* dst, OffsetOf offset_of) {
  constexpr int kChunks = kHeadDim / 8;
  static_assert(kRows * kChunks % kThreads == 0);
  const uint32_t base = ptx::SharedAddress(dst);
#pragma unroll
  for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const int index = threadIdx.x + i * kThreads;
    const int row = index / kChunks;
    const int chunk = index % kChunks;
    const int64_t offset = offset_of(row);
    ptx::CopyAsync16(ChunkAddress<kRows>(base, row, chunk),
                     data + (offset < 0 ? 0 : offset) + chunk * 8, offset >= 0);
  }
}

// The keys of a step, at most 64: a tile, single columns, or the means of
// neighbouring blocks.
struct Step {
  const int32_t* columns;  // [count]; null unless these are columns
  int32_t begin;           // first key of the tile, or first block
  int32_t count;           // keys that exist; of a tile all
  bool means;
};

// Walks a cell: its key tiles, descending, its columns, its means. All threads
// call together and get the same answer.
class StepCursor {
 public:
  __device__ StepCursor(const DeviceTilePlan& plan, int64_t cell_index) {
    const PlanCell cell = plan.cells[cell_index];
    range_ = plan.ranges + cell.range_end;
    tiles_left_ = cell.num_tiles;
    origin_ = cell.key_origin;
    columns_ = plan.columns + cell.column_begin;
    columns_left_ = cell.num_columns;
    means_left_ = cell.num_means;
    if (means_left_ > 0) {
      blocks_ = plan.mean_blocks + plan.mean_offsets[cell_index];
    }
  }

  // False after the last step.
  __device__ bool Next(Step& step) {
    if (tiles_left_ > 0) {
      while (range_tiles_ == 0) range_tiles_ = (--range_)->num_tiles;
      --tiles_left_;
      --range_tiles_;
      step = {nullptr, range_->begin + origin_ + range_tiles_ * kBlockN,
              kBlockN, false};
      return true;
    }
    if (columns_left_ > 0) {
      step = {columns_, 0, min(columns_left_, kBlockN), false};
      columns_ += step.count;
      columns_left_ -= step.count;
      return true;
    }
    if (means_left_ == 0) return false;
    if (interval_left_ == 0) {
      block_ = blocks_->begin;
      interval_left_ = blocks_->count;
      ++blocks_;
    }
    step = {nullptr, block_, min(interval_left_, kBlockN), true};
    block_ += step.count;
    interval_left_ -= step.count;
    means_left_ -= step.count;
    return true;
  }

 private:
  const KeyRange* range_;
  const int32_t* columns_;
  const BlockInterval* blocks_ = nullptr;
  int32_t tiles_left_;
  int32_t range_tiles_ = 0;  // left in *range_
  int32_t origin_;
  int32_t columns_left_;
  int32_t means_left_;
  int32_t block_ = 0;
  int32_t interval_left_ = 0;  // blocks of the current interval
};

// scores = q k^T of 16 rows. scores: [16, 64]
template <int kHeadDim>
__device__ __forceinline__ void Scores(const uint32_t (&q)[kHeadDim / 16][4],
                                       const uint16_t* k, float (&scores)[32],
                                       int lane) {
  const uint32_t base = ptx::SharedAddress(k);
#pragma unroll
  for (int i = 0; i < 32; ++i) scores[i] = 0;
#pragma unroll
  for (int depth = 0; depth < kHeadDim / 16; ++depth) {
#pragma unroll
    for (int keys = 0; keys < kBlockN; keys += 16) {
      uint32_t b[4];  // two blocks of 8 keys
      ptx::LoadMatrix4(
          b, ChunkAddress<kBlockN>(base, keys + (lane & 7) + ((lane >> 4) << 3),
                                   depth * 2 + ((lane >> 3) & 1)));
      ptx::MmaM16N8K16(&scores[keys / 2], q[depth], b[0], b[1]);
      ptx::MmaM16N8K16(&scores[keys / 2 + 4], q[depth], b[2], b[3]);
    }
  }
}

// o += probs v of 16 rows. probs: [16, 64] bf16 pairs, o: [16, head_dim]
template <int kHeadDim>
__device__ __forceinline__ void Output(const uint32_t (&probs)[16],
                                       const uint16_t* v,
                                       float (&o)[kHeadDim / 2], int lane) {
  const uint32_t base = ptx::SharedAddress(v);
#pragma unroll
  for (int depth = 0; depth < kBlockN / 16; ++depth) {
    const uint32_t a[4] = {probs[4 * depth], probs[4 * depth + 1],
                           probs[4 * depth + 2], probs[4 * depth + 3]};
#pragma unroll
    for (int dim = 0; dim < kHeadDim; dim += 16) {
      uint32_t b[4];  // two blocks of 8 columns
      ptx::LoadMatrix4Transposed(
          b, ChunkAddress<kBlockN>(base, depth * 16 + (lane & 15),
                                   dim / 8 + (lane >> 4)));
      ptx::MmaM16N8K16(&o[dim / 2], a, b[0], b[1]);
      ptx::MmaM16N8K16(&o[dim / 2 + 4], a, b[2], b[3]);
    }
  }
}

// Hides columns beyond limit[r] in row r of the thread's two.
__device__ __forceinline__ void Mask(float (&scores)[32], const int (&limit)[2],
                                     int lane) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int column = i / 4 * 8 + (lane & 3) * 2 + i % 2;
    if (column > limit[i / 2 % 2]) scores[i] = -INFINITY;
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    SparseAttentionKernel(const __grid_constant__ KernelParams p) {
  extern __shared__ __align__(128) uint8_t raw[];
  auto& s = *reinterpret_cast<SharedStorage<kHeadDim>*>(raw);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const DeviceTilePlan& plan = p.plan;

  const int item = plan.order[blockIdx.x];
  const int head = item / plan.num_q_tiles;
  const int q_tile = item % plan.num_q_tiles;
  const int kv_head = head / p.group;
  const QueryTile tile(plan, head, q_tile);
  // Row of q that a row of the block is; outside [0, q_len) at ragged edges.
  const auto q_row = [&](int row) {
    return tile.Position(row) - static_cast<int>(plan.q_begin);
  };
  const auto exists = [&](int row) {
    return q_row(row) >= 0 && q_row(row) < plan.q_len;
  };

  StepCursor cursor(plan, CellIndexOf(plan, p.num_heads, head, q_tile));
  const auto load = [&](const Step& step, int stage) {
    const int64_t stride = step.means ? p.stride_mean_row : p.stride_kv_row;
    const int64_t kv_offset =
        kv_head * (step.means ? p.stride_mean_head : p.stride_kv_head);
    const auto offset_of = [&](int row) -> int64_t {
      if (row >= step.count) return -1;
      const int64_t source =
          step.columns != nullptr ? step.columns[row] : step.begin + row;
      return source < plan.kv_len ? source * stride : -1;
    };
    CopyRows<kHeadDim, kBlockN>((step.means ? p.k_means : p.k) + kv_offset,
                                s.k[stage], offset_of);
    CopyRows<kHeadDim, kBlockN>((step.means ? p.v_means : p.v) + kv_offset,
                                s.v[stage], offset_of);
  };

  // Start Q, then the first keys.
  CopyRows<kHeadDim, kBlockM>(p.q, s.q, [&](int row) -> int64_t {
    return exists(row)
               ? q_row(row) * p.stride_q_row + tile.Head(row) * p.stride_q_head
               : -1;
  });
  ptx::CopyAsyncCommit();
  Step next;
  bool more = cursor.Next(next);
  if (more) load(next, 0);
  ptx::CopyAsyncCommit();

  // Keep Q in registers.
  ptx::CopyAsyncWait<1>();
  __syncthreads();
  uint32_t q[kHeadDim / 16][4];  // [16, head_dim]
#pragma unroll
  for (int depth = 0; depth < kHeadDim / 16; ++depth) {
    ptx::LoadMatrix4(q[depth], ChunkAddress<kBlockM>(ptx::SharedAddress(s.q),
                                                     warp * 16 + (lane & 15),
                                                     depth * 2 + (lane >> 4)));
  }

  const int row = warp * 16 + (lane >> 2);  // and row + 8
  float o[kHeadDim / 2];                    // [16, head_dim]
  float scores[32];                         // [16, 64]
  uint32_t probs[16];                       // [16, 64], bf16 pairs
  Softmax softmax;
#pragma unroll
  for (int i = 0; i < kHeadDim / 2; ++i) o[i] = 0;
  for (int stage = 0; more; stage ^= 1) {
    // Start the next keys, wait for this step's.
    const Step step = next;
    more = cursor.Next(next);
    if (more) load(next, stage ^ 1);
    ptx::CopyAsyncCommit();
    ptx::CopyAsyncWait<1>();
    __syncthreads();

    Scores<kHeadDim>(q, s.k[stage], scores, lane);
    if (step.means) {
#pragma unroll
      for (int i = 0; i < 32; ++i) scores[i] += p.mean_bias;
    }
    if (step.columns != nullptr || step.means) {
      const int limit = step.count - 1;
      if (step.count < kBlockN) Mask(scores, {limit, limit}, lane);
    } else if (step.begin + kBlockN - 1 > tile.begin) {
      Mask(scores,
           {tile.Position(row) - step.begin,
            tile.Position(row + 8) - step.begin},
           lane);
    }
    float scale[2];
    if (softmax.Update(scores, p.scale_log2, scale)) Rescale(o, scale);
    ToBf16(scores, probs);
    Output<kHeadDim>(probs, s.v[stage], o, lane);
    // The stage is free for the step after the next.
    __syncthreads();
  }

  float inverse[2];
  float lse[2];
  softmax.Finish(inverse, lse);
  Rescale(o, inverse);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int mine = row + 8 * r;
    if (!exists(mine)) continue;
    auto* out = reinterpret_cast<uint32_t*>(p.o + q_row(mine) * p.stride_o_row +
                                            tile.Head(mine) * p.stride_o_head);
#pragma unroll
    for (int block = 0; block < kHeadDim / 8; ++block) {
      out[block * 4 + (lane & 3)] =
          Pack(o[4 * block + 2 * r], o[4 * block + 2 * r + 1]);
    }
    if (p.lse != nullptr && (lane & 3) == 0) {
      p.lse[tile.Head(mine) * plan.q_len + q_row(mine)] = lse[r];
    }
  }
}

}  // namespace overture::kernels::sm80
