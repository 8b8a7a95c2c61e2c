// The producer warpgroup: takes work items, walks their cells, fills the ring
// of K and V stages. Key tiles come by TMA from one thread; single columns and
// means of blocks are gathered by all 128 with 16-byte copies, two steps in
// flight.
//
// Source of the gather: MInference, arXiv 2407.02490, section 3.2.
#pragma once

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/sparse_attention/kernel_params.cuh"

namespace overture::kernels::sm90 {

// Walks a cell's key tiles backwards, 32 ranges in registers of a warp at a
// time; ranges before the cell's first may be among them and are never reached.
// All lanes call together and get the same answer.
struct TileCursor {
  const KeyRange* ranges;
  int64_t next;  // index of the next range to load, exclusive
  int origin;
  int lane;
  int held = 0;  // ranges left in registers; lane i holds the i-th newest
  int2 mine = {0, 0};
  int begin = 0;  // current range
  int tiles = 0;

  __device__ TileCursor(const KeyRange* r, const PlanCell& cell, int lane_id)
      : ranges(r),
        next(cell.range_end),
        origin(cell.key_origin),
        lane(lane_id) {}

  // First key of the next tile, descending. REQUIRES tiles left.
  __device__ __forceinline__ int Next() {
    while (tiles == 0) {
      if (held == 0) {
        held = static_cast<int>(min(int64_t{32}, next));
        if (lane < held) {
          mine = *reinterpret_cast<const int2*>(&ranges[next - 1 - lane]);
        }
        next -= held;
        index = 0;
      }
      begin = __shfl_sync(~0u, mine.x, index) + origin;
      tiles = __shfl_sync(~0u, mine.y, index);
      ++index;
      --held;
    }
    --tiles;
    return begin + tiles * kSubTile;
  }
  int index = 0;
};

// A producer thread's share of the rows that a step gathers: it copies one
// 16-byte chunk in eight of rows thread / 8 + 16 i.
struct GatheredRows {
  int32_t source[kBlockN / 16];  // row of the tensor; -1: no such row
};

// Single columns, in order.
struct ColumnCursor {
  const int32_t* columns;

  // The thread's rows of the next step, of which `count` exist.
  __device__ __forceinline__ void Next(GatheredRows& rows, int count,
                                       int thread) {
#pragma unroll
    for (int i = 0; i < kBlockN / 16; ++i) {
      const int row = (thread >> 3) + 16 * i;
      rows.source[i] = row < count ? columns[row] : -1;
    }
    columns += kBlockN;
  }
};

// Corrected blocks, in order, 32 intervals in registers of a warp at a time; a
// row finds its interval by binary search, so that intervals of one block cost
// no more than long ones. All lanes of a warp call together.
struct MeanCursor {
  const BlockInterval* intervals;  // to load next
  int num_intervals;               // to load
  int held = 0;                    // blocks of the intervals in registers
  int used = 0;                    // of those
  int end = 0;   // blocks held in this lane's interval and those before it
  int base = 0;  // block i of those held, if in this lane's, is base + i

  __device__ __forceinline__ void Next(GatheredRows& rows, int count,
                                       int thread) {
    const int lane = thread & 31;
#pragma unroll
    for (int i = 0; i < kBlockN / 16; ++i) rows.source[i] = -1;
    const int want = min(count, kBlockN);
    for (int filled = 0; filled < want;) {
      if (used == held) {
        int2 mine = {0, 0};
        if (lane < num_intervals) {
          mine = *reinterpret_cast<const int2*>(intervals + lane);
        }
        intervals += 32;
        num_intervals -= 32;
        end = mine.y;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
          const int before = __shfl_up_sync(~0u, end, step);
          if (lane >= step) end += before;
        }
        base = mine.x - (end - mine.y);
        held = __shfl_sync(~0u, end, 31);
        used = 0;
      }
      const int take = min(held - used, want - filled);
#pragma unroll
      for (int i = 0; i < kBlockN / 16; ++i) {
        const int row = (thread >> 3) + 16 * i - filled;
        int owner = 0;  // first lane whose end is beyond the row's block
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
          if (__shfl_sync(~0u, end, owner + step - 1) <= used + row) {
            owner += step;
          }
        }
        const int block = __shfl_sync(~0u, base, owner) + used + row;
        if (row >= 0 && row < take) rows.source[i] = block;
      }
      used += take;
      filled += take;
    }
  }
};

// Starts copying the rows of K or V, or of their means, into a stage, swizzled
// as TMA would. Eight neighbouring threads copy one 128-byte line.
template <int kHeadDim>
__device__ __forceinline__ void GatherRows(const __nv_bfloat16* head_data,
                                           int64_t stride_row, uint16_t* stage,
                                           const GatheredRows& rows,
                                           int thread) {
  constexpr int kChunks = kHeadDim / 8;  // 16-byte chunks of a row
  const uint32_t base = ptx::SharedAddress(stage);
  const int chunk8 = thread & 7;
#pragma unroll
  for (int i = 0; i < kBlockN / 16; ++i) {
    const int row = (thread >> 3) + 16 * i;
    const bool valid = rows.source[i] >= 0;
    const __nv_bfloat16* src =
        head_data + (valid ? rows.source[i] : 0) * stride_row;
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

// Gathers `count` rows that `cursor` names, 128 a step, by the whole warpgroup.
template <int kHeadDim, typename Cursor>
__device__ __forceinline__ void Gather(
    typename Traits<kHeadDim>::SharedStorage& s,
    Ring<Traits<kHeadDim>::kStages>& ring, const __nv_bfloat16* k_head,
    const __nv_bfloat16* v_head, int64_t stride_row, int count, int work,
    Cursor cursor, int thread) {
  // Warp 0 has seen every stage freed; the others must not be more than a phase
  // ahead when they wait for one.
  ptx::NamedBarrierSync(kProducers, 128);
  const bool leader = thread == 0;
  GatheredRows rows;
  cursor.Next(rows, count, thread);
  uint64_t* pending_v = nullptr;  // V of the last step, not yet signalled
  for (; count > 0; count -= kBlockN) {
    // Two copies are in flight: each is signalled after the next started.
    ptx::BarrierWait(&s.k_empty[ring.stage], ring.phase ^ 1);
    GatherRows<kHeadDim>(k_head, stride_row, s.k[ring.stage], rows, thread);
    if (pending_v != nullptr) SignalGathered<1>(pending_v, leader);
    ptx::BarrierWait(&s.v_empty[ring.stage], ring.phase ^ 1);
    GatherRows<kHeadDim>(v_head, stride_row, s.v[ring.stage], rows, thread);
    if (leader) {
      s.step[ring.stage] = {{0, 0},
                            min(count, kBlockN),
                            work | (count < kBlockN ? kMask : kNothing)};
    }
    cursor.Next(rows, count - kBlockN, thread);
    SignalGathered<1>(&s.k_full[ring.stage], leader);
    pending_v = &s.v_full[ring.stage];
    ring.Next();
  }
  SignalGathered<0>(pending_v, leader);
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
  const int total = p.num_heads * p.plan.num_q_tiles;

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
          info.head = item / p.plan.num_q_tiles;
          info.q_tile = item - info.head * p.plan.num_q_tiles;
          const PlanCell cell =
              CellOf(p.plan, p.num_heads, info.head, info.q_tile);
          info.num_steps = (cell.num_tiles + 1) / 2 +
                           (cell.num_columns + kBlockN - 1) / kBlockN +
                           (cell.num_means + kBlockN - 1) / kBlockN;
        }
        s.item = info;
        if (info.head < 0) {
          ptx::BarrierArrive(&s.q_full);
        } else {
          ptx::BarrierArriveExpect(&s.q_full, kBlockM * T::kPanels * 128);
          const QueryTile tile(p.plan, info.head, info.q_tile);
          const int row = tile.begin - static_cast<int>(p.plan.q_begin);
          for (int panel = 0; panel < T::kPanels; ++panel) {
            ptx::TmaLoad4d(&p.q, &s.q[panel * kBlockM * kPanel], &s.q_full,
                           panel * kPanel, 0, row, info.head, ptx::kEvictFirst);
          }
        }
      }
      __syncwarp();
    }
    ptx::BarrierWait(&s.q_full, item_phase);
    const ItemInfo item = ReadItem(s.item, lane);
    if (warp != 0 && lane == 0) ptx::BarrierArrive(&s.q_empty);
    item_phase ^= 1;
    if (item.head < 0) return;

    const int kv_head = item.head / p.group;
    const PlanCell cell = CellOf(p.plan, p.num_heads, item.head, item.q_tile);
    const int tiles = cell.num_tiles;
    const int tile_begin = QueryTile(p.plan, item.head, item.q_tile).begin;

    // Key tiles, two a step, from the diagonal backwards. Warp 0 alone.
    const int tile_steps = (tiles + 1) / 2;
    if (warp == 0) {
      TileCursor cursor(p.plan.ranges, cell, lane);
      for (int left = tiles; left > 0; left -= 2) {
        const int high = cursor.Next();
        const int low = left > 1 ? cursor.Next() : -1;
        if (leader) {
          StepInfo info;
          // A missing second tile lies beyond all keys: zeros, seen by no row.
          info.start[0] = low >= 0 ? low : high;
          info.start[1] = low >= 0 ? high : kNoTile;
          info.valid = -1;
          info.work =
              low < 0 || high + kSubTile - 1 > tile_begin ? kMask : kNothing;
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

    // Single columns, then means of blocks.
    if (cell.num_columns > 0) {
      Gather<kHeadDim>(s, ring, p.k_data + kv_head * p.stride_kv_head,
                       p.v_data + kv_head * p.stride_kv_head, p.stride_kv_row,
                       cell.num_columns, kNothing,
                       ColumnCursor{p.plan.columns + cell.column_begin},
                       thread);
    }
    if (cell.num_means > 0) {
      const int64_t* offsets =
          p.plan.mean_offsets +
          CellIndexOf(p.plan, p.num_heads, item.head, item.q_tile);
      Gather<kHeadDim>(s, ring, p.k_means + kv_head * p.stride_mean_head,
                       p.v_means + kv_head * p.stride_mean_head,
                       p.stride_mean_row, cell.num_means, kWeighMeans,
                       MeanCursor{p.plan.mean_blocks + offsets[0],
                                  static_cast<int>(offsets[1] - offsets[0])},
                       thread);
    }
  }
}

}  // namespace overture::kernels::sm90
