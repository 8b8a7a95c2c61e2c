// Attention over a tile plan on sm_90a: one producer warpgroup fills K and V
// stages (TMA for key tiles, 16-byte gathers for single columns), two consumer
// warpgroups of 64 query rows each run wgmma and an online softmax. A step's
// score product is issued together with the last step's output product, so that
// the softmax between hides behind matrix work.
//
// Source of the schedule: FlashAttention-3, arXiv 2407.08608, sections 3.1 and
// 3.2; of the gather: MInference, arXiv 2407.02490, section 3.2.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/wgmma.cuh"
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

// ---------------------------------------------------------------- producer

// Walks a cell's key tiles backwards, 32 ranges in registers of a warp at a
// time. All lanes call together and get the same answer.
struct TileCursor {
  const KeyRange* ranges;
  int64_t next;  // index of the next range to load, exclusive
  int64_t first;
  int lane;
  int held = 0;  // ranges left in registers; lane i holds the i-th newest
  int2 mine = {0, 0};
  int begin = 0;  // current range
  int tiles = 0;

  __device__ TileCursor(const KeyRange* r, int64_t first_range,
                        int64_t end_range, int lane_id)
      : ranges(r), next(end_range), first(first_range), lane(lane_id) {}

  // First key of the next tile, descending. REQUIRES tiles left.
  __device__ __forceinline__ int Next() {
    while (tiles == 0) {
      if (held == 0) {
        held = static_cast<int>(min(int64_t{32}, next - first));
        if (lane < held) {
          mine = *reinterpret_cast<const int2*>(&ranges[next - 1 - lane]);
        }
        next -= held;
        index = 0;
      }
      begin = __shfl_sync(~0u, mine.x, index);
      tiles = __shfl_sync(~0u, mine.y, index);
      ++index;
      --held;
    }
    --tiles;
    return begin + tiles * kSubTile;
  }
  int index = 0;
};

// A producer thread's share of the columns of a step: it copies one 16-byte
// chunk in eight of rows thread / 8 + 16 i.
struct GatherColumns {
  int32_t key[kBlockN / 16];  // -1: no such column

  __device__ __forceinline__ void Load(const int32_t* columns, int count,
                                       int thread) {
#pragma unroll
    for (int i = 0; i < kBlockN / 16; ++i) {
      const int row = (thread >> 3) + 16 * i;
      key[i] = row < count ? columns[row] : -1;
    }
  }
};

// Starts copying the columns' rows of K or V into a stage, swizzled as TMA
// would. Eight neighbouring threads copy one 128-byte line.
template <int kHeadDim>
__device__ __forceinline__ void GatherRows(const __nv_bfloat16* head_data,
                                           int64_t stride_row, uint16_t* stage,
                                           const GatherColumns& columns,
                                           int thread) {
  constexpr int kChunks = kHeadDim / 8;  // 16-byte chunks of a row
  const uint32_t base = ptx::SharedAddress(stage);
  const int chunk8 = thread & 7;
#pragma unroll
  for (int i = 0; i < kBlockN / 16; ++i) {
    const int row = (thread >> 3) + 16 * i;
    const bool valid = columns.key[i] >= 0;
    const __nv_bfloat16* src =
        head_data + (valid ? columns.key[i] : 0) * stride_row;
#pragma unroll
    for (int c = 0; c < kChunks; c += 8) {
      const int chunk = c + chunk8;
      if (kChunks % 8 == 0 || chunk < kChunks) {
        const uint32_t dst = base + (c >> 3) * (kBlockN * 128) + row * 128 +
                             ((chunk8 ^ (row & 7)) << 4);
        ptx::CopyAsync16(dst, src + chunk * 8, valid);
      }
    }
  }
  ptx::CopyAsyncCommit();
}

// Makes gathered rows, all but the newest `kPending` groups of every producer
// thread, visible to the consumers.
template <int kPending>
__device__ __forceinline__ void SignalGathered(uint64_t* full, bool leader) {
  ptx::CopyAsyncWait<kPending>();
  ptx::FenceProxyAsync();
  ptx::NamedBarrierSync(kProducers, 128);
  if (leader) ptx::BarrierArrive(full);
}

template <int kHeadDim>
__device__ __forceinline__ void Produce(
    const KernelParams& p, typename Traits<kHeadDim>::SharedStorage& s) {
  using T = Traits<kHeadDim>;
  const int thread = threadIdx.x & 127;
  const int warp = thread >> 5;
  const int lane = thread & 31;
  const bool leader = thread == 0;
  constexpr uint32_t kTileBytes = kBlockN * T::kPanels * kPanel * 2;
  const int total = p.num_q_heads * p.plan.num_q_tiles;

  Ring<T::kStages> ring;
  uint32_t item_phase = 0;
  for (;;) {
    // Publish the next item and load its Q.
    if (warp == 0) {
      ptx::BarrierWait(&s.q_empty, item_phase ^ 1);
      if (leader) {
        const int slot = atomicAdd(p.plan.next_item, 1);
        ItemInfo info = {-1, 0, 0};
        if (slot < total) {
          const int item = p.plan.order[slot];
          info.q_head = item / p.plan.num_q_tiles;
          info.q_tile = item - info.q_head * p.plan.num_q_tiles;
          const int64_t cell = CellOf(p, info.q_head, info.q_tile);
          const int columns = static_cast<int>(p.plan.column_offsets[cell + 1] -
                                               p.plan.column_offsets[cell]);
          info.num_steps = (p.plan.cell_tiles[cell] + 1) / 2 +
                           (columns + kBlockN - 1) / kBlockN;
        }
        s.item = info;
        if (info.q_head < 0) {
          ptx::BarrierArrive(&s.q_full);
        } else {
          ptx::BarrierArriveExpect(&s.q_full, kBlockM * T::kPanels * 128);
          const int64_t tile0 = p.plan.q_begin / kBlockM * kBlockM;
          const int row =
              static_cast<int>(tile0 - p.plan.q_begin) + info.q_tile * kBlockM;
          for (int panel = 0; panel < T::kPanels; ++panel) {
            ptx::TmaLoad3d(&p.q, &s.q[panel * kBlockM * kPanel], &s.q_full,
                           panel * kPanel, row, info.q_head, ptx::kEvictFirst);
          }
        }
      }
      __syncwarp();
    }
    ptx::BarrierWait(&s.q_full, item_phase);
    const ItemInfo item = ReadItem(s.item);
    if (warp != 0 && lane == 0) ptx::BarrierArrive(&s.q_empty);
    item_phase ^= 1;
    if (item.q_head < 0) return;

    const int kv_head = item.q_head / p.group;
    const int64_t cell = CellOf(p, item.q_head, item.q_tile);
    const int tiles = p.plan.cell_tiles[cell];
    const int64_t tile_begin =
        (p.plan.q_begin / kBlockM + item.q_tile) * kBlockM;

    // Key tiles, two a step, from the diagonal backwards. Warp 0 alone.
    const int tile_steps = (tiles + 1) / 2;
    if (warp == 0) {
      TileCursor cursor(p.plan.ranges, p.plan.range_offsets[cell],
                        p.plan.range_offsets[cell + 1], lane);
      for (int left = tiles; left > 0; left -= 2) {
        const int high = cursor.Next();
        const int low = left > 1 ? cursor.Next() : -1;
        if (leader) {
          StepInfo info;
          // A missing second tile lies beyond all keys: zeros, seen by no row.
          info.start[0] = low >= 0 ? low : high;
          info.start[1] = low >= 0 ? high : kNoTile;
          info.valid = -1;
          info.mask = low < 0 || high + kSubTile - 1 > tile_begin;
          const bool adjacent = low >= 0 && low + kSubTile == high;

          ptx::BarrierWait(&s.k_empty[ring.stage], ring.phase ^ 1);
          s.step[ring.stage] = info;
          ptx::BarrierArriveExpect(&s.k_full[ring.stage], kTileBytes);
          for (int panel = 0; panel < T::kPanels; ++panel) {
            uint16_t* dst = &s.k[ring.stage][panel * T::kPanelElements];
            if (adjacent) {
              ptx::TmaLoad3d(&p.k2, dst, &s.k_full[ring.stage], panel * kPanel,
                             low, kv_head, ptx::kEvictLast);
            } else {
              ptx::TmaLoad3d(&p.k, dst, &s.k_full[ring.stage], panel * kPanel,
                             info.start[0], kv_head, ptx::kEvictLast);
              ptx::TmaLoad3d(&p.k, dst + kSubTile * kPanel,
                             &s.k_full[ring.stage], panel * kPanel,
                             info.start[1], kv_head, ptx::kEvictLast);
            }
          }
          ptx::BarrierWait(&s.v_empty[ring.stage], ring.phase ^ 1);
          ptx::BarrierArriveExpect(&s.v_full[ring.stage], kTileBytes);
          for (int panel = 0; panel < T::kPanels; ++panel) {
            uint16_t* dst = &s.v[ring.stage][panel * T::kPanelElements];
            if (adjacent) {
              ptx::TmaLoad3d(&p.v2, dst, &s.v_full[ring.stage], panel * kPanel,
                             low, kv_head, ptx::kEvictLast);
            } else {
              ptx::TmaLoad3d(&p.v, dst, &s.v_full[ring.stage], panel * kPanel,
                             info.start[0], kv_head, ptx::kEvictLast);
              ptx::TmaLoad3d(&p.v, dst + kSubTile * kPanel,
                             &s.v_full[ring.stage], panel * kPanel,
                             info.start[1], kv_head, ptx::kEvictLast);
            }
          }
        }
        __syncwarp();
        ring.Next();
      }
    } else {
      // The other warps take part in the full barriers, so that a step costs
      // the same arrivals whoever fills it.
      for (int i = 0; i < tile_steps; ++i) ring.Next();
    }

    // Single columns, 128 a step, gathered by the whole warpgroup.
    const int64_t column_begin = p.plan.column_offsets[cell];
    const int num_columns =
        static_cast<int>(p.plan.column_offsets[cell + 1] - column_begin);
    if (num_columns > 0) {
      // Warp 0 has seen every stage freed; the others must not be more than a
      // phase ahead when they wait for one.
      ptx::NamedBarrierSync(kProducers, 128);
      const __nv_bfloat16* k_head = p.k_data + kv_head * p.stride_kv_head;
      const __nv_bfloat16* v_head = p.v_data + kv_head * p.stride_kv_head;
      GatherColumns columns;
      columns.Load(p.plan.columns + column_begin, num_columns, thread);
      uint64_t* pending_v = nullptr;  // V of the last step, not yet signalled
      for (int done = 0; done < num_columns; done += kBlockN) {
        // Two copies are in flight: each is signalled after the next started.
        ptx::BarrierWait(&s.k_empty[ring.stage], ring.phase ^ 1);
        GatherRows<kHeadDim>(k_head, p.stride_kv_row, s.k[ring.stage], columns,
                             thread);
        if (pending_v != nullptr) SignalGathered<1>(pending_v, leader);
        ptx::BarrierWait(&s.v_empty[ring.stage], ring.phase ^ 1);
        GatherRows<kHeadDim>(v_head, p.stride_kv_row, s.v[ring.stage], columns,
                             thread);
        const int count = num_columns - done;
        if (leader) {
          s.step[ring.stage] = {{0, 0}, min(count, kBlockN), count < kBlockN};
        }
        columns.Load(p.plan.columns + column_begin + done + kBlockN,
                     count - kBlockN, thread);
        SignalGathered<1>(&s.k_full[ring.stage], leader);
        pending_v = &s.v_full[ring.stage];
        ring.Next();
      }
      SignalGathered<0>(pending_v, leader);
    }
  }
}

// ---------------------------------------------------------------- consumer

// s = q k^T of one step for this warpgroup's 64 rows. s: [64, 128]
template <int kHeadDim>
__device__ __forceinline__ void IssueScores(float (&scores)[64],
                                            const uint16_t* q,
                                            const uint16_t* k) {
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    const int panel = step / 4;
    const uint32_t offset = (step % 4) * 32;
    ptx::WgmmaM64N128K16SharedShared(
        scores,
        ptx::Advance(ptx::KMajorDescriptor(q + panel * kBlockM * kPanel),
                     offset),
        ptx::Advance(ptx::KMajorDescriptor(k + panel * kBlockN * kPanel),
                     offset),
        step == 0);
  }
}

// o += p v of one step. probs: [64, 128] bf16 pairs, o: [64, head_dim]
template <int kHeadDim>
__device__ __forceinline__ void IssueOutput(float (&o)[kHeadDim / 2],
                                            const uint32_t (&probs)[32],
                                            const uint16_t* v) {
  const uint64_t base = ptx::MnMajorDescriptor(v, kBlockN * kPanel * 2);
#pragma unroll
  for (int step = 0; step < kBlockN / 16; ++step) {
    ptx::WgmmaRegisterShared(o, &probs[4 * step],
                             ptx::Advance(base, step * 2048),
                             /*zero=*/false);
  }
}

// Hides what a row may not see: column c of half h beyond limit[row][h].
__device__ __forceinline__ void Mask(float (&scores)[64], const StepInfo& info,
                                     int row0, int thread) {
  const int column0 = (thread & 3) * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int limit0 =
        info.valid >= 0 ? info.valid - 1 - half * 64 : row0 - info.start[half];
    const int limit1 = info.valid >= 0 ? limit0 : limit0 + 8;
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = block * 8 + column0 + j;
        const int at = 4 * (half * 8 + block) + j;
        if (column > limit0) scores[at] = -INFINITY;
        if (column > limit1) scores[at + 2] = -INFINITY;
      }
    }
  }
}

__device__ __forceinline__ uint32_t Pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Online softmax of two rows (r and r + 8) per thread, in units of log2.
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
  __device__ __forceinline__ bool Update(float (&scores)[64], float scale_log2,
                                         float (&scale)[2]) {
    float top[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float tops[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
      for (int i = 0; i < 32; ++i) {
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
    for (int i = 0; i < 32; ++i) {
      const int r = i % 2;
      float& low = scores[2 * i];
      float& high = scores[2 * i + 1];
      low = ptx::Exp2(fmaf(low, scale_log2, -reference[r]));
      high = ptx::Exp2(fmaf(high, scale_log2, -reference[r]));
      row_sum[r] += low + high;
    }
    return moved;
  }
};

__device__ __forceinline__ void ToBf16(const float (&scores)[64],
                                       uint32_t (&probs)[32]) {
#pragma unroll
  for (int i = 0; i < 32; ++i)
    probs[i] = Pack(scores[2 * i], scores[2 * i + 1]);
}

template <int kCount>
__device__ __forceinline__ void Rescale(float (&o)[kCount],
                                        const float (&scale)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) o[i] *= scale[(i / 2) % 2];
}

// Writes this warpgroup's 64 rows of O through shared memory (its part of Q's
// buffer, which nobody reads any more) and the log-sum-exp.
template <int kHeadDim>
__device__ __forceinline__ void StoreOutput(
    const KernelParams& p, typename Traits<kHeadDim>::SharedStorage& s,
    float (&o)[kHeadDim / 2], const Softmax& softmax, const ItemInfo& item,
    int consumer, int thread) {
  const int warp = thread >> 5;
  const int lane = thread & 31;
  float inverse[2];
  float lse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.row_sum[r];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    inverse[r] = sum > 0 ? 1.0f / sum : 0.0f;
    lse[r] = sum > 0
                 ? (softmax.reference[r] + log2f(sum)) * 0.69314718055994531f
                 : -INFINITY;
  }
  Rescale(o, inverse);

  const int first_row =
      static_cast<int>(p.plan.q_begin / kBlockM * kBlockM - p.plan.q_begin) +
      item.q_tile * kBlockM + consumer * 64;
  const bool whole = first_row >= 0 && first_row + 64 <= p.plan.q_len;
  if (whole) {
    // Panel layout as Q's: 128 rows of 128 bytes, 16-byte chunks swizzled.
    const uint32_t base = ptx::SharedAddress(s.q) + consumer * 64 * 128;
    const int row = warp * 16 + (lane & 15);
#pragma unroll
    for (int block = 0; block < kHeadDim / 8; block += 2) {
      // Lanes 0..15 address rows of column block `block`, lanes 16..31 the
      // next.
      const int chunk = block + (lane >> 4);
      const uint32_t address = base + (chunk >> 3) * (kBlockM * 128) +
                               row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
      uint32_t pack[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pack[i] = Pack(o[4 * block + 2 * i], o[4 * block + 2 * i + 1]);
      }
      ptx::StoreMatrix4(address, pack);
    }
    ptx::FenceProxyAsync();
    ptx::NamedBarrierSync(kStore0 + consumer, 128);
    if (thread == 0) {
      for (int panel = 0; panel < Traits<kHeadDim>::kPanels; ++panel) {
        ptx::TmaStore3d(&p.o,
                        &s.q[panel * kBlockM * kPanel + consumer * 64 * kPanel],
                        panel * kPanel, first_row, item.q_head);
      }
      ptx::TmaStoreCommit();
      ptx::TmaStoreWaitRead<0>();
    }
  } else {
    // A ragged edge of the query range: straight from registers.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int q_row = first_row + warp * 16 + (lane >> 2) + 8 * r;
      if (q_row < 0 || q_row >= p.plan.q_len) continue;
      auto* out = reinterpret_cast<uint32_t*>(
          p.o_data + q_row * p.stride_o_row + item.q_head * p.stride_o_head);
#pragma unroll
      for (int block = 0; block < kHeadDim / 8; ++block) {
        out[block * 4 + (lane & 3)] =
            Pack(o[4 * block + 2 * r], o[4 * block + 2 * r + 1]);
      }
    }
    ptx::NamedBarrierSync(kStore0 + consumer, 128);
  }
  if (thread == 0) ptx::BarrierArrive(&s.q_empty);
  if (p.lse != nullptr && (lane & 3) == 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int q_row = first_row + warp * 16 + (lane >> 2) + 8 * r;
      if (q_row >= 0 && q_row < p.plan.q_len) {
        p.lse[item.q_head * p.plan.q_len + q_row] = lse[r];
      }
    }
  }
}

template <int kHeadDim>
__device__ __forceinline__ void Consume(
    const KernelParams& p, typename Traits<kHeadDim>::SharedStorage& s,
    int consumer) {
  using T = Traits<kHeadDim>;
  const int thread = threadIdx.x & 127;
  const int warp = thread >> 5;
  const int lane = thread & 31;

  Ring<T::kStages> ring;
  uint32_t item_phase = 0;
  for (;;) {
    ptx::BarrierWait(&s.q_full, item_phase);
    item_phase ^= 1;
    const ItemInfo item = ReadItem(s.item);
    if (item.q_head < 0) break;

    float o[kHeadDim / 2];  // [64, head_dim]
    float scores[64];       // [64, 128]
    uint32_t probs[32];     // [64, 128], bf16 pairs
    Softmax softmax;
    float scale[2];
    const uint16_t* q = &s.q[consumer * 64 * kPanel];
    const int row0 =
        static_cast<int>((p.plan.q_begin / kBlockM + item.q_tile) * kBlockM) +
        consumer * 64 + warp * 16 + (lane >> 2);

#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] = 0;
    if (item.num_steps > 0) {
      // First step: scores and softmax alone.
      ptx::BarrierWait(&s.k_full[ring.stage], ring.phase);
      StepInfo info = ReadStep(s.step[ring.stage]);
      ptx::WgmmaFence();
      IssueScores<kHeadDim>(scores, q, s.k[ring.stage]);
      ptx::WgmmaCommit();
      ptx::WgmmaWait<0>();
      ptx::FenceRegisters(scores);
      if (thread == 0) ptx::BarrierArrive(&s.k_empty[ring.stage]);
      if (info.mask) Mask(scores, info, row0, thread);
      softmax.Update(scores, p.scale_log2, scale);
      ToBf16(scores, probs);

      Ring<T::kStages> v_ring = ring;
      ring.Next();
      for (int step = 1; step < item.num_steps; ++step) {
        // Scores of this step and output of the last one, back to back.
        const int k_stage = __shfl_sync(~0u, ring.stage, 0);
        const int v_stage = __shfl_sync(~0u, v_ring.stage, 0);
        ptx::BarrierWait(&s.k_full[ring.stage], ring.phase);
        ptx::BarrierWait(&s.v_full[v_ring.stage], v_ring.phase);
        ptx::WgmmaFence();
        IssueScores<kHeadDim>(scores, q, s.k[k_stage]);
        ptx::WgmmaCommit();
        IssueOutput<kHeadDim>(o, probs, s.v[v_stage]);
        ptx::WgmmaCommit();
        info = ReadStep(s.step[ring.stage]);
        ptx::WgmmaWait<1>();
        ptx::FenceRegisters(scores);
        if (thread == 0) ptx::BarrierArrive(&s.k_empty[ring.stage]);

        if (info.mask) Mask(scores, info, row0, thread);
        const bool moved = softmax.Update(scores, p.scale_log2, scale);
        // Ends the basic block once the softmax is done: ptxas would otherwise
        // hoist the wait above it, and the output product would hide nothing.
        if (softmax.row_sum[0] + softmax.row_sum[1] < 0) __trap();
        ptx::WgmmaWait<0>();
        ptx::FenceRegisters(o);
        if (thread == 0) ptx::BarrierArrive(&s.v_empty[v_ring.stage]);
        ToBf16(scores, probs);
        if (moved) Rescale(o, scale);
        v_ring = ring;
        ring.Next();
      }
      ptx::BarrierWait(&s.v_full[v_ring.stage], v_ring.phase);
      ptx::WgmmaFence();
      IssueOutput<kHeadDim>(o, probs, s.v[v_ring.stage]);
      ptx::WgmmaCommit();
      ptx::WgmmaWait<0>();
      ptx::FenceRegisters(o);
      if (thread == 0) ptx::BarrierArrive(&s.v_empty[v_ring.stage]);
    }
    StoreOutput<kHeadDim>(p, s, o, softmax, item, consumer, thread);
  }
}

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
    // Consumers free the item; so do the three producer warps that read it.
    ptx::BarrierInit(&s.q_full, 1);
    ptx::BarrierInit(&s.q_empty, kNumConsumers + 3);
    for (int i = 0; i < T::kStages; ++i) {
      ptx::BarrierInit(&s.k_full[i], 1);
      ptx::BarrierInit(&s.v_full[i], 1);
      ptx::BarrierInit(&s.k_empty[i], kNumConsumers);
      ptx::BarrierInit(&s.v_empty[i], kNumConsumers);
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
