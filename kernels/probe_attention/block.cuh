// Device code of probe attention on sm_80 and later: two passes over the keys,
// each reading a key once for all query heads that share it. Neither scores nor
// probabilities leave the registers; pass 1 leaves a maximum and a sum per row,
// pass 2 adds up.
//
// A block has one KV head and one chunk of keys, cut into runs. A warp has one
// run and half of the 64 rows of one query head, which stay in its registers as
// the right operand of mma.sync; 16 keys at a time are the left one. Half of
// them, so that a multiprocessor holds 16 warps: eight of 64 rows waited more
// for their own latencies (1.69 ns a key and pass at a million keys, even with
// one unit's products between another's exponentials; 16 take 1.60).
// Warps of a run share its keys in shared memory and wait for each other once a
// stage; warps of different runs do not.
//
// Budget per key and pass, 64 rows of 32 heads over 8 KV heads, on an H200: 0.5
// MFLOP take 0.8 ns at mma.sync's rate, 2,048 exponentials 0.55 ns, reading 2
// KB of keys 0.45 ns. Measured 1.5 ns in pass 1 and 1.8 in pass 2: tensor cores
// busy for 56 and 46% of the time, schedulers for 44 and 49%; what remains are
// latencies of dependent instructions and of the special-function unit.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/mma.cuh"

namespace overture::kernels::probe {

inline constexpr int kWarp = 32;
inline constexpr int kMaxWarps = 16;  // of a block: 128 registers a thread
inline constexpr int kRows = 64;      // query rows of a block
inline constexpr int kHalves = 2;
inline constexpr int kWarpRows = kRows / kHalves;
inline constexpr int kTile = 8;  // rows and keys of a block of a product
inline constexpr int kRowTiles = kWarpRows / kTile;
inline constexpr int kUnitKeys = 16;             // keys of a product
inline constexpr int kScores = kRowTiles * 4;    // of a unit and thread
inline constexpr int kThreadRows = kScores / 2;  // of a thread
inline constexpr int kStageKeys = 32;
inline constexpr int kStages = 4;
inline constexpr int kPad = 8;  // elements of a key row, against bank conflicts

// One block of 64 rows, ending at position `last`, of some query heads of every
// KV head. Rows before `first_row` of the 64 do not exist.
struct BlockParams {
  const __nv_bfloat16* q;  // row 0 of the block, query head 0
  const __nv_bfloat16* k;  // [kv_heads, kv_len, head_dim]
  int64_t stride_q_row;    // elements
  int64_t stride_q_head;
  int64_t stride_k_row;
  int64_t stride_k_head;
  int32_t head_dim;
  int32_t group;       // query heads of a KV head
  int32_t first_head;  // first of the group that this launch takes
  int32_t num_heads;   // of the group that this launch takes
  int32_t kv_len;
  int32_t last;
  int32_t first_row;
  int32_t window_row;  // first row that votes; 64 if none
  int32_t num_runs;
  int32_t run_keys;   // a multiple of kStageKeys
  int32_t runs;       // of a block
  float scale_log2;   // |softmax scale| * log2(e), > 0
  uint32_t sign;      // 0x80008000 if the scale is negative
  float2* row_parts;  // [q_heads, num_runs, 64]: reference, sum
  float* row_lse;     // [q_heads, 64], log2 of the sum of exponentials
  // Outputs, each may be null: [q_heads, kv_len] twice, [kv_heads, kv_len].
  float* column_sums;
  float* diagonal_sums;
  float* window_votes;
  bool add_sums;   // to what is there
  bool add_votes;  // to what is there
};

// Where a warp works.
struct Place {
  int warp, lane;
  int run_of_block, head_of_block, half;
  int run, q_head, kv_head;
  int key_begin;  // of the run
  int row_begin;  // of the warp, among the block's 64

  __device__ explicit Place(const BlockParams& p)
      : warp(threadIdx.x / kWarp),
        lane(threadIdx.x % kWarp),
        run_of_block(warp / (p.num_heads * kHalves)),
        head_of_block(warp % p.num_heads),
        half(warp / p.num_heads % kHalves),
        run(blockIdx.x * p.runs + run_of_block),
        q_head(blockIdx.y * p.group + p.first_head + head_of_block),
        kv_head(blockIdx.y),
        key_begin(run * p.run_keys),
        row_begin(half * kWarpRows) {}
};

__host__ __device__ constexpr int KeyStride(int steps) {
  return steps * 16 + kPad;
}

// The stages of one run's keys, filled by the warps that share them.
template <int kSteps>
class KeyRing {
 public:
  static constexpr int kStageElements = kStageKeys * KeyStride(kSteps);

  // `stages` belongs to the run; the first stage starts at `key`, which may be
  // negative. Keys that do not exist are zeros.
  __device__ KeyRing(const BlockParams& p, const Place& place,
                     __nv_bfloat16* stages, int key)
      : p_(p),
        stages_(ptx::SharedAddress(stages)),
        barrier_(1 + place.run_of_block),
        threads_(p.num_heads * kHalves * kWarp),
        key_(key) {
    const int thread = threadIdx.x - place.run_of_block * threads_;
    first_row_ = thread / kChunkLanes;
    chunk_ = thread % kChunkLanes;
    k_ = p.k + place.kv_head * p.stride_k_head + chunk_ * 8;
    for (int i = 0; i < kStages - 1; ++i) Fill();
  }

  // Waits for the next stage and returns its address. What the warps of the
  // run wrote before they called is visible then.
  __device__ __forceinline__ uint32_t Next() {
    ptx::CopyAsyncWait<kStages - 2>();
    Sync();
    Fill();  // where all have been
    return Stage(key_ - kStages * kStageKeys);
  }

  __device__ __forceinline__ void Sync() {
    ptx::NamedBarrierSync(barrier_, threads_);
  }

 private:
  static constexpr int kChunks = kSteps * 2;  // 16 bytes each, of a key
  static constexpr int kChunkLanes = kChunks <= 8 ? 8 : 16;

  // Where the stage that begins at `key` belongs.
  __device__ __forceinline__ uint32_t Stage(int key) const {
    return stages_ + (static_cast<uint32_t>(key) / kStageKeys) % kStages *
                         kStageElements * 2;
  }

  __device__ __forceinline__ void Fill() {
    if (chunk_ < kChunks) {
      const bool exists = chunk_ * 8 < p_.head_dim;
      const uint32_t to = Stage(key_) + chunk_ * 16;
      for (int row = first_row_; row < kStageKeys;
           row += threads_ / kChunkLanes) {
        const int key = key_ + row;
        // As an unsigned number a negative key is beyond all others.
        const bool valid = exists && static_cast<uint32_t>(key) <
                                         static_cast<uint32_t>(p_.kv_len);
        ptx::CopyAsync16(to + row * KeyStride(kSteps) * 2,
                         k_ + (valid ? key : 0) * p_.stride_k_row, valid);
      }
    }
    ptx::CopyAsyncCommit();
    key_ += kStageKeys;
  }

  const BlockParams& p_;
  const __nv_bfloat16* k_;  // this thread's chunk of key 0
  const uint32_t stages_;
  const uint32_t barrier_;
  const int threads_;
  int first_row_;
  int chunk_;
  int key_;  // first of the stage to fill next
};

// A warp's query rows, the right operand: thread l holds of row 8 b + l / 4
// the elements 2 (l % 4) + 0..1 and + 8..9 of every 16. Zeros where there is no
// row or element.
template <int kSteps>
struct Queries {
  uint32_t pairs[kSteps][kRowTiles][2];

  __device__ Queries(const BlockParams& p, const Place& place) {
    const int column = place.lane % 4 * 2;
#pragma unroll
    for (int b = 0; b < kRowTiles; ++b) {
      const int row = place.row_begin + b * kTile + place.lane / 4;
      const uint32_t keep = row >= p.first_row ? ~0u : 0;
      const __nv_bfloat16* from = p.q + place.q_head * p.stride_q_head +
                                  max(row, p.first_row) * p.stride_q_row +
                                  column;
#pragma unroll
      for (int i = 0; i < kSteps * 2; ++i) {
        uint32_t pair = 0;
        if (i * 8 < p.head_dim) {
          pair = *reinterpret_cast<const uint32_t*>(from + i * 8) ^ p.sign;
        }
        pairs[i / 2][b][i % 2] = pair & keep;
      }
    }
  }
};

// Unscaled scores of a unit, 16 keys and the warp's rows: s[b][2 h + e] is key
// 8 h + l / 4, row 8 b + 2 (l % 4) + e.
using UnitScores = float[kRowTiles][4];

// `keys` is the address of the unit's first.
template <int kSteps>
__device__ __forceinline__ void Score(const Queries<kSteps>& q, uint32_t keys,
                                      int lane, UnitScores& s) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) s[i / 4][i % 4] = 0;
  const uint32_t from =
      keys + lane % 16 * KeyStride(kSteps) * 2 + lane / 16 * 16;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t a[4];
    ptx::LoadMatrix4(a, from + step * 32);
#pragma unroll
    for (int b = 0; b < kRowTiles; ++b) {
      const uint32_t(&pair)[2] = q.pairs[step][b];
      ptx::MmaM16N8K16(s[b], a, pair[0], pair[1]);
    }
  }
}

// Hides keys that do not exist or lie after the row; `key` is the unit's first.
__device__ __forceinline__ void Mask(const BlockParams& p, const Place& place,
                                     int key, UnitScores& s) {
  const int position = p.last - (kRows - 1) + place.row_begin;  // first row's
  if (key >= 0 && key + kUnitKeys - 1 <= position) return;
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int row = i / 4 * kTile + place.lane % 4 * 2 + i % 2;
    const int c = key + i % 4 / 2 * kTile + place.lane / 4;
    // As unsigned numbers a negative key is beyond every position.
    if (static_cast<uint32_t>(c) > static_cast<uint32_t>(position + row)) {
      s[i / 4][i % 4] = -INFINITY;
    }
  }
}

// Both values' sums over the four lanes of a key: lane % 4 == 0 gets the first,
// 1 the second.
__device__ __forceinline__ float AddQuads(float first, float second, int lane) {
  const bool odd = lane % 2 != 0;
  const float sum =
      (odd ? second : first) + __shfl_xor_sync(~0u, odd ? first : second, 1);
  return sum + __shfl_xor_sync(~0u, sum, 2);
}

extern __shared__ __align__(16) uint8_t raw_shared[];

}  // namespace overture::kernels::probe
