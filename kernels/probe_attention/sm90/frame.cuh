// What both passes of probe attention share on sm_90a: how a block is cut, its
// shared memory, its producer and the products of its consumers.
//
// A block has up to four query heads of one KV head and four runs of its keys.
// Warp w of a consumer warpgroup has run w: a tile is 16 keys of each run, the
// rows of wgmma's left operand, so that a warp sees its run's keys in order and
// nothing of the others'. The 64 rows of two query heads are the right operand,
// the other two heads are the other warpgroup's. While a tile's exponentials
// are taken, the next one's product runs.
//
// Budget of a tile of four heads at head dim 128: 1,024 cycles of tensor cores
// and 1,024 of the special-function unit; 512 of a scheduler's issues. The sums
// of a row or a diagonal stay in the registers of one thread, and no warp waits
// for another but for the keys.
#pragma once

#include "kernels/probe_attention/sm90/launch.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace overture::kernels::probe::sm90 {

inline constexpr int kRuns = 4;       // of a block, one per warp of a warpgroup
inline constexpr int kPairHeads = 2;  // heads of a consumer warpgroup
inline constexpr int kConsumers = 2;
static_assert(kMaxHeads == kPairHeads * kConsumers);
inline constexpr int kWarps = 4 * kConsumers;
inline constexpr int kThreads = 128 * (1 + kConsumers);
inline constexpr int kTileRows = kRuns * kUnitKeys;  // keys of a tile
inline constexpr int kPairRows = kPairHeads * kRows;
inline constexpr int kPanel = 64;     // columns of a swizzled panel
inline constexpr int kStepTiles = 4;  // 64 keys of a run: a diagonal's rows
inline constexpr int kStepKeys = kStepTiles * kUnitKeys;
static_assert(kStepKeys == kRows);
// Of 64 K registers: 128 threads with 24, 256 with 240.
inline constexpr int kProducerRegisters = 24;
inline constexpr int kConsumerRegisters = 240;

// Scores of a tile and thread: of head h, rows 8 b + 2 (l % 4) + e and the
// run's keys 8 g + l / 4, at 32 h + 4 b + 2 g + e.
using TileScores = float[64];
inline constexpr int kHeadRows = 2 * kRows / kTile;  // of a thread and head
inline constexpr int kGroups = kUnitKeys / kTile;    // g

struct KernelParams {
  CUtensorMap k;  // boxes of a panel and 16 keys
  BlockParams block;
};

// Heads of the launch that do not exist in the last pair have rows of zeros.
template <int kSteps>
struct Shared {
  static constexpr int kPanels = (kSteps * 16 + kPanel - 1) / kPanel;
  static constexpr int kStages = 6;
  static constexpr uint32_t kStageBytes = kPanels * kTileRows * kPanel * 2;
  static constexpr uint32_t kPanelBytes = kTileRows * kPanel * 2;
  static constexpr uint32_t kQueryPanelBytes = kPairRows * kPanel * 2;

  alignas(1024) uint8_t q[kConsumers][kPanels][kQueryPanelBytes];
  alignas(1024) uint8_t k[kStages][kStageBytes];
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

// Where a consumer warp works.
struct Place {
  int warpgroup, warp, lane;  // warp: of the warpgroup
  int run;
  int kv_head;
  int head;    // first of the pair, among the launch's
  int q_head;  // the same, among all

  __device__ explicit Place(const BlockParams& p)
      : warpgroup(threadIdx.x / 128 - 1),
        warp(threadIdx.x / 32 % 4),
        lane(threadIdx.x % 32),
        run(blockIdx.x * kRuns + warp),
        kv_head(blockIdx.y),
        head(warpgroup * kPairHeads),
        q_head(blockIdx.y * p.group + p.first_head + head) {}

  // Of head h of the pair.
  __device__ bool Exists(const BlockParams& p, int h) const {
    return head + h < p.num_heads;
  }
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
  for (int i = threadIdx.x; i < kConsumers * kPairRows * kChunks;
       i += kThreads) {
    const int row = i / kChunks;  // of all heads'
    const int chunk = i % kChunks;
    const int head = row / kRows;
    const int row_of_head = row % kRows;
    int4 value = {0, 0, 0, 0};
    if (head < p.num_heads && row_of_head >= p.first_row &&
        chunk * 8 < p.head_dim) {
      const int64_t q_head = blockIdx.y * p.group + p.first_head + head;
      value = *reinterpret_cast<const int4*>(p.q + q_head * p.stride_q_head +
                                             row_of_head * p.stride_q_row +
                                             chunk * 8);
      const int sign = static_cast<int>(p.sign);
      value = {value.x ^ sign, value.y ^ sign, value.z ^ sign, value.w ^ sign};
    }
    const int row_of_pair = row % kPairRows;
    uint8_t* panel = s.q[row / kPairRows][chunk / 8];
    *reinterpret_cast<int4*>(panel + row_of_pair * 128 +
                             (chunk % 8 ^ row_of_pair % 8) * 16) = value;
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
  TileScores scores[2];
  int stage = 0;  // of the product that is issued next
  uint32_t parity = 0;
  const uint64_t queries = ptx::KMajorDescriptor(s.q[place.warpgroup]);
  const auto issue = [&](TileScores& to) {
    ptx::BarrierWait(&s.full[stage], parity);
    ptx::FenceRegisters(to);
    ptx::WgmmaFence();
    const uint64_t keys = ptx::KMajorDescriptor(s.k[stage]);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      ptx::WgmmaM64N128K16SharedShared(
          to, ptx::Advance(keys, i / 4 * S::kPanelBytes + i % 4 * 32),
          ptx::Advance(queries, i / 4 * S::kQueryPanelBytes + i % 4 * 32),
          i == 0);
    }
    ptx::WgmmaCommit();
    if (++stage == S::kStages) {
      stage = 0;
      parity ^= 1;
    }
  };
  int done = 0;  // stage of the product that is awaited next
  for (int step = 0; step < num_steps; ++step) {
    // No product is in flight from one step to the next: the compiler would
    // not see that its scores are not read, and let none overlap anything.
    issue(scores[0]);
#pragma unroll
    for (int tile = 0; tile < kStepTiles; ++tile) {
      if (tile + 1 < kStepTiles) {
        issue(scores[(tile + 1) % 2]);
        ptx::WgmmaWait<1>();
      } else {
        ptx::WgmmaWait<0>();
      }
      ptx::FenceRegisters(scores[tile % 2]);
      if (place.lane == 0) ptx::BarrierArrive(&s.empty[done]);
      if (++done == S::kStages) done = 0;
      visit(scores[tile % 2], tile);
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
  for (int i = 0; i < 64; ++i) {
    const int row = place.Row(i % 32 / 4 * 2 + i % 2);
    const int c = key + i % 4 / 2 * kTile + place.lane / 4;
    // As unsigned numbers a negative key is beyond every position.
    if (static_cast<uint32_t>(c) > static_cast<uint32_t>(position + row)) {
      s[i] = -INFINITY;
    }
  }
}

// Splits a block's roles: the first warpgroup loads `num_tiles` tiles from
// `early` keys before each run, the others call consume().
template <int kSteps, typename Consume>
__device__ __forceinline__ void RunRoles(const KernelParams& p,
                                         Shared<kSteps>& s, int num_tiles,
                                         int early, Consume&& consume) {
  if (threadIdx.x == 0) {
    ptx::PrefetchTensorMap(&p.k);
    for (int i = 0; i < Shared<kSteps>::kStages; ++i) {
      ptx::BarrierInit(&s.full[i], 1);
      ptx::BarrierInit(&s.empty[i], kWarps);
    }
    ptx::FenceBarrierInit();
  }
  LoadQueries(p.block, s);
  __syncthreads();
  if (__shfl_sync(~0u, threadIdx.x / 128, 0) == 0) {
    ptx::RegistersDecrease<kProducerRegisters>();
    if (threadIdx.x == 0) Produce(p, s, num_tiles, early);
  } else {
    ptx::RegistersIncrease<kConsumerRegisters>();
    consume();
  }
}

}  // namespace overture::kernels::probe::sm90
