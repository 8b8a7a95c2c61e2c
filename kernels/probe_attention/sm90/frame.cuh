// What both passes of probe attention share on sm_90a: how a block is cut, its
// shared memory, its producer and the products of its consumers.
//
// A block has up to four query heads of one KV head, a consumer warpgroup each,
// and four runs of its keys. Warp w of every warpgroup has run w: a tile is 16
// keys of each run, the rows of wgmma's left operand, so that a warp sees its
// run's keys in order and nothing of the others'. The 64 rows of the
// warpgroup's head are the right operand. While one warpgroup takes the
// exponentials of its scores, the others' products run; no warp waits for
// another but for the keys, and the sums of a row or a diagonal stay in the
// registers of one thread.
//
// Budget of a tile of four heads at head dim 128: 1,024 cycles of tensor cores
// and 1,024 of the special-function unit, 0.58 ns a key and pass for 32 heads
// over 8 on an H200. Measured 0.96 ns in pass 1 and 1.10 in pass 2, either unit
// busy for 60 and 52% of the time. Tried: two heads and 240 registers a
// warpgroup, the next tile's product in flight during this one's exponentials
// (1.18 and 1.16), or in strict turns with the other warpgroup (1.26 and 1.30):
// a warp that issues products waits until the tensor cores have taken them, and
// eight warps leave nobody to work meanwhile.
#pragma once

#include "kernels/probe_attention/sm90/launch.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace overture::kernels::probe::sm90 {

inline constexpr int kRuns = 4;  // of a block, one per warp of a warpgroup
inline constexpr int kMaxWarps = 4 * kMaxHeads;  // that consume
// A warpgroup per head and then the warp that loads.
__host__ __device__ constexpr int Threads(int num_heads) {
  return 128 * num_heads + 32;
}
inline constexpr int kMaxThreads = Threads(kMaxHeads);
inline constexpr int kTileRows = kRuns * kUnitKeys;  // keys of a tile
inline constexpr int kPanel = 64;     // columns of a swizzled panel
inline constexpr int kStepTiles = 4;  // 64 keys of a run: a diagonal's rows
inline constexpr int kStepKeys = kStepTiles * kUnitKeys;
static_assert(kStepKeys == kRows);

// Scores of a tile and thread: of rows 8 b + 2 (l % 4) + e and the run's keys 8
// g + l / 4, at 4 b + 2 g + e.
using TileScores = float[32];
inline constexpr int kTileThreadRows = 2 * kRows / kTile;  // rows of a thread
inline constexpr int kGroups = kUnitKeys / kTile;          // g

struct KernelParams {
  CUtensorMap k;  // boxes of a panel and 16 keys
  BlockParams block;
};

template <int kSteps>
struct Shared {
  static constexpr int kPanels = (kSteps * 16 + kPanel - 1) / kPanel;
  static constexpr int kStages = 6;  // 206 KB with all else at head dim 128
  static constexpr uint32_t kStageBytes = kPanels * kTileRows * kPanel * 2;
  static constexpr uint32_t kPanelBytes = kTileRows * kPanel * 2;
  static constexpr uint32_t kQueryPanelBytes = kRows * kPanel * 2;

  alignas(1024) uint8_t q[kMaxHeads][kPanels][kQueryPanelBytes];
  alignas(1024) uint8_t k[kStages][kStageBytes];
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

// Where a consumer warp works.
struct Place {
  int warp, lane;  // warp: of the warpgroup
  int head;        // of the launch's, and the warpgroup
  int run;
  int kv_head;
  int q_head;

  __device__ explicit Place(const BlockParams& p)
      : warp(threadIdx.x / 32 % 4),
        lane(threadIdx.x % 32),
        head(threadIdx.x / 128),
        run(blockIdx.x * kRuns + warp),
        kv_head(blockIdx.y),
        q_head(blockIdx.y * p.group + p.first_head + head) {}

  // Of the 64, row i of the thread.
  __device__ int Row(int i) const {
    return i / 2 * kTile + lane % 4 * 2 + i % 2;
  }
};

// All threads: the queries, swizzled as wgmma wants them.
template <int kSteps>
__device__ __forceinline__ void LoadQueries(const BlockParams& p,
                                            Shared<kSteps>& s) {
  constexpr int kChunks = kSteps * 2;  // of 16 bytes, of a row
  for (int i = threadIdx.x; i < p.num_heads * kRows * kChunks;
       i += blockDim.x) {
    const int chunk = i % kChunks;
    const int row = i / kChunks % kRows;
    const int head = i / kChunks / kRows;
    int4 value = {0, 0, 0, 0};
    if (row >= p.first_row && chunk * 8 < p.head_dim) {
      const int64_t q_head = blockIdx.y * p.group + p.first_head + head;
      value = *reinterpret_cast<const int4*>(p.q + q_head * p.stride_q_head +
                                             row * p.stride_q_row + chunk * 8);
      const int sign = static_cast<int>(p.sign);
      value = {value.x ^ sign, value.y ^ sign, value.z ^ sign, value.w ^ sign};
    }
    *reinterpret_cast<int4*>(s.q[head][chunk / 8] + row * 128 +
                             (chunk % 8 ^ row % 8) * 16) = value;
  }
  ptx::FenceProxyAsync();
}

// One thread: `num_tiles` tiles, the first of run r at its begin - `early`.
// Keys that do not exist are zeros.
template <int kSteps>
__device__ __forceinline__ void Produce(const KernelParams& p,
                                        Shared<kSteps>& s, int num_tiles,
                                        int early) {
  using S = Shared<kSteps>;
  const int first = static_cast<int>(blockIdx.x) * kRuns * p.block.run_keys;
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int stage = tile % S::kStages;
    const uint32_t round = tile / S::kStages;
    if (round > 0) ptx::BarrierWait(&s.empty[stage], (round - 1) % 2);
    ptx::BarrierArriveExpect(&s.full[stage], S::kStageBytes);
    for (int run = 0; run < kRuns; ++run) {
      const int key = first + run * p.block.run_keys - early + tile * kUnitKeys;
      for (int panel = 0; panel < S::kPanels; ++panel) {
        ptx::TmaLoad3d(
            &p.k,
            s.k[stage] + panel * S::kPanelBytes + run * kUnitKeys * kPanel * 2,
            &s.full[stage], panel * kPanel, key, blockIdx.y, ptx::kEvictNormal);
      }
    }
  }
}

// Calls visit(scores, tile of the step) for every tile of `num_steps` steps in
// turn and end_step() after each step.
template <int kSteps, typename Visit, typename EndStep>
__device__ __forceinline__ void ForEachTile(const Place& place,
                                            Shared<kSteps>& s, int num_steps,
                                            Visit&& visit, EndStep&& end_step) {
  using S = Shared<kSteps>;
  TileScores scores;
  int stage = 0;
  uint32_t parity = 0;
  const uint64_t queries = ptx::KMajorDescriptor(s.q[place.head]);
  for (int step = 0; step < num_steps; ++step) {
#pragma unroll
    for (int tile = 0; tile < kStepTiles; ++tile) {
      ptx::BarrierWait(&s.full[stage], parity);
      ptx::FenceRegisters(scores);
      ptx::WgmmaFence();
      const uint64_t keys = ptx::KMajorDescriptor(s.k[stage]);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        ptx::WgmmaSharedShared(
            scores, ptx::Advance(keys, i / 4 * S::kPanelBytes + i % 4 * 32),
            ptx::Advance(queries, i / 4 * S::kQueryPanelBytes + i % 4 * 32),
            i == 0);
      }
      ptx::WgmmaCommit();
      ptx::WgmmaWait<0>();
      ptx::FenceRegisters(scores);
      if (place.lane == 0) ptx::BarrierArrive(&s.empty[stage]);
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
      visit(scores, tile);
    }
    end_step();
  }
}

// Hides keys that do not exist or lie after the row; `key` is the first of the
// warp's 16.
__device__ __forceinline__ void Mask(const BlockParams& p, const Place& place,
                                     int key, TileScores& s) {
  const int position = p.last - (kRows - 1);  // of the first row
  if (key >= 0 && key + kUnitKeys - 1 <= position) return;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int row = place.Row(i / 4 * 2 + i % 2);
    const int c = key + i % 4 / 2 * kTile + place.lane / 4;
    // As unsigned numbers a negative key is beyond every position.
    if (static_cast<uint32_t>(c) > static_cast<uint32_t>(position + row)) {
      s[i] = -INFINITY;
    }
  }
}

// Splits a block's roles: the last warp loads `num_tiles` tiles from `early`
// keys before each run, the others call consume().
template <int kSteps, typename Consume>
__device__ __forceinline__ void RunRoles(const KernelParams& p,
                                         Shared<kSteps>& s, int num_tiles,
                                         int early, Consume&& consume) {
  if (threadIdx.x == 0) {
    ptx::PrefetchTensorMap(&p.k);
    for (int i = 0; i < Shared<kSteps>::kStages; ++i) {
      ptx::BarrierInit(&s.full[i], 1);
      ptx::BarrierInit(&s.empty[i], 4 * p.block.num_heads);
    }
    ptx::FenceBarrierInit();
  }
  LoadQueries(p.block, s);
  __syncthreads();
  if (__shfl_sync(~0u, threadIdx.x / 128, 0) < p.block.num_heads) {
    consume();
  } else if (threadIdx.x % 32 == 0) {
    Produce(p, s, num_tiles, early);
  }
}

}  // namespace overture::kernels::probe::sm90
