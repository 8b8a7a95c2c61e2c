// The producer: one warp that takes work items, walks their cells, and fills
// the ring of K and V stages with whole quantised tiles.
#pragma once

#include "kernels/fp8_attention/traits.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/sparse_attention/producer.cuh"

namespace overture::kernels::sm90 {

template <typename T>
__device__ __forceinline__ void ProduceFp8(const Fp8KernelParams& p,
                                           typename T::SharedStorage& s) {
  const int lane = threadIdx.x & 31;
  const bool leader = lane == 0;
  const int total = p.num_heads * p.plan.num_q_tiles;
  Ring<T::kStages> ring;
  Ring<T::kQueryStages> items;
  for (;;) {
    // Take an item; the one before it may still be computed.
    int slot = 0;
    if (leader) slot = atomicAdd(p.plan.next_item, 1);
    slot = __shfl_sync(~0u, slot, 0);
    const bool done = slot >= total;
    const int item = done ? 0 : p.plan.order[slot];
    const int head = item / p.plan.num_q_tiles;
    const int q_tile = item - head * p.plan.num_q_tiles;
    const int kv_head = head / p.group;
    const PlanCell cell = CellOf(p.plan, p.num_heads, head, q_tile);
    const int tiles = cell.num_tiles;
    if (cell.num_columns != 0 || cell.num_means != 0) __trap();

    // Publish it and load its Q.
    ptx::BarrierWait(&s.q_empty[items.stage], items.phase ^ 1);
    if (leader) {
      s.item[items.stage] = {done ? -1 : head, q_tile,
                             (tiles + T::kTiles - 1) / T::kTiles};
      if (done) {
        ptx::BarrierArrive(&s.q_full[items.stage]);
      } else {
        ptx::BarrierArriveExpect(&s.q_full[items.stage], T::kQueryTile);
        ptx::BulkLoad(s.q[items.stage], p.q + int64_t{item} * T::kQueryTile,
                      T::kQueryTile, &s.q_full[items.stage], ptx::kEvictFirst);
      }
    }
    items.Next();
    if (done) return;

    // Key tiles, from the diagonal backwards.
    const int64_t head_tile = kv_head * p.num_kv_tiles;
    TileCursor cursor(p.plan.ranges, cell, lane);
    for (int left = tiles; left > 0; left -= T::kTiles) {
      // Lane h keeps tile h. A tile that is not there, or lies beyond all
      // keys, has some tile's finite values and a position that hides them.
      int mine = kNoTile;
#pragma unroll
      for (int h = T::kTiles - 1; h >= 0; --h) {
        if (left - (T::kTiles - 1 - h) > 0) {
          const int start = cursor.Next();
          if (lane == h) mine = start;
        }
      }
      int tile = mine / kSubTile;
      if (tile >= p.valid_kv_tiles) tile = 0;
      float4 scales;
      if (lane < T::kTiles) {
        scales =
            *reinterpret_cast<const float4*>(&p.kv_scales[head_tile + tile]);
      }

      ptx::BarrierWait(&s.empty[ring.stage], ring.phase ^ 1);
      if (lane < T::kTiles) {
        s.tile[ring.stage][lane] = {scales.x, scales.y, scales.z, mine};
      }
      __syncwarp();
      if (leader) {
        ptx::BarrierArriveExpect(&s.full[ring.stage],
                                 T::kTiles * (T::kKeyTile + T::kValueTile));
      }
      __syncwarp();
      if (lane < T::kTiles) {
        ptx::BulkLoad(s.k[ring.stage][lane],
                      p.k + (head_tile + tile) * T::kKeyTile, T::kKeyTile,
                      &s.full[ring.stage], ptx::kEvictLast);
        ptx::BulkLoad(s.v[ring.stage][lane],
                      p.v + (head_tile + tile) * T::kValueTile, T::kValueTile,
                      &s.full[ring.stage], ptx::kEvictLast);
      }
      ring.Next();
    }
  }
}

}  // namespace overture::kernels::sm90
