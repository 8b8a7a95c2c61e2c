// Pass 2 of probe attention: probabilities again, summed up.
//
// Diagonals. Keys go by in ascending order, so the 8 x 8 blocks of products (8
// keys, 8 rows) that lie on one block diagonal come one after the other, to the
// same thread: they are added up element by element in a window of four, at one
// addition a probability. Only the finished block, once per four, is summed
// along its own 15 diagonals, through shared memory. The two halves of the rows
// meet 32 keys later: a distance is written by the later half, where its last
// row meets the key, which belongs to one run; the run starts 64 keys early for
// the other rows. So every output has one writer and one order of additions.
#pragma once

#include "kernels/probe_attention/block.cuh"

namespace overture::kernels::probe {

// Finished block diagonals, one row per key modulo 8, the newest of the stage
// before in front: stores of two and skewed loads meet no bank conflict.
inline constexpr int kSkewed = kStageKeys + kTile;
static_assert(kRowTiles * kTile == kStageKeys, "a stage turns the window once");

// Sums of a warp and stage for others to read a stage later, so twice.
enum Part : int { kColumns, kDiagonals, kVotes, kNumParts };

// Of a warp, beside the stages.
inline constexpr int kSumsFloats = kTile * kSkewed + 2 * kNumParts * kStageKeys;

// What a warp adds up, stage by stage.
template <bool kWithVotes>
class WarpSums {
 public:
  // `shared` is [warps, kSumsFloats] of the block.
  __device__ WarpSums(const BlockParams& p, const Place& place, float* shared)
      : p_(p), place_(place), shared_(shared + place.warp * kSumsFloats) {
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const int row =
          place.row_begin + i / 2 * kTile + place.lane % 4 * 2 + i % 2;
      lse_[i] =
          row >= p.first_row ? p.row_lse[place.q_head * kRows + row] : INFINITY;
      window_[i / 2][i % 2] = 0;
      if (row >= p.window_row) voting_ |= 1u << i;
    }
    *Finished(-1) = {0, 0};
  }

  // Adds the scores of the t-th unit of the stage.
  __device__ __forceinline__ void Add(const UnitScores& s, int t, int parity) {
    float column[2];
    float vote[2] = {0, 0};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int tile = 2 * t + h;  // of keys
      float sum[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        const int b = i / 2, e = i % 2;
        const float prob =
            ptx::Exp2(fmaf(s[b][2 * h + e], p_.scale_log2, -lse_[i]));
        sum[e] += prob;
        if (kWithVotes && (voting_ >> i & 1)) vote[h] += prob;
        float& diagonal = window_[(b - tile) & (kRowTiles - 1)][e];
        diagonal = b == 0 ? prob : diagonal + prob;
      }
      column[h] = sum[0] + sum[1];
      // The block diagonal that ends with the last row tile.
      const float(&done)[2] = window_[(kRowTiles - 1 - tile) & (kRowTiles - 1)];
      *Finished(tile) = {done[1], done[0]};
    }
    const int lane = place_.lane;
    const int at = t * kUnitKeys + lane % 2 * kTile + lane / 4;
    const float sum = AddQuads(column[0], column[1], lane);
    if (lane % 4 < 2) Parts(kColumns, parity)[at] = sum;
    if (kWithVotes) {
      const float votes = AddQuads(vote[0], vote[1], lane);
      if (lane % 4 < 2) Parts(kVotes, parity)[at] = votes;
    }
  }

  // After the last unit of the stage that begins at `key`.
  __device__ __forceinline__ void AddDiagonals(bool owned, int key,
                                               int parity) {
    __syncwarp();
    // The diagonal that ends at key + lane.
    const float* from = shared_ + kTile + place_.lane;
    float sum = 0;
#pragma unroll
    for (int g = 0; g < kTile; ++g) sum += from[g * (kSkewed - 1)];
    __syncwarp();
    // What the first diagonals of the next stage begin with.
    *Finished(-1) = *Finished(kRowTiles - 1);
    if (place_.half == 0) {
      Parts(kDiagonals, parity)[place_.lane] = sum;
      return;
    }
    const int distance = p_.last - (key + place_.lane);
    if (p_.diagonal_sums == nullptr || !owned || distance < 0) return;
    sum += Parts(kDiagonals, parity ^ 1, -p_.num_heads)[place_.lane];
    Store(p_.diagonal_sums, place_.q_head, distance, sum, p_.add_sums);
  }

  // Once all warps of the run have been through the stage that begins at `key`.
  __device__ __forceinline__ void EmitColumns(int key, int parity) {
    if (place_.half != 0 || key + place_.lane > p_.last) return;
    if (p_.column_sums != nullptr) {
      const float sum = Parts(kColumns, parity)[place_.lane] +
                        Parts(kColumns, parity, p_.num_heads)[place_.lane];
      Store(p_.column_sums, place_.q_head, key + place_.lane, sum, p_.add_sums);
    }
    if (!kWithVotes || place_.head_of_block != 0) return;
    float sum = 0;
    for (int head = 0; head < p_.num_heads; ++head) {
      sum += Parts(kVotes, parity, head)[place_.lane] +
             Parts(kVotes, parity, p_.num_heads + head)[place_.lane];
    }
    Store(p_.window_votes, place_.kv_head, key + place_.lane, sum / p_.group,
          p_.add_votes);
  }

 private:
  // Where this thread's two elements of the block that ends at a key tile
  // stand: element (key g, row r) in row g, column 7 - r, so that what a
  // diagonal takes from each row moves by one.
  __device__ __forceinline__ float2* Finished(int tile) const {
    return reinterpret_cast<float2*>(shared_ + place_.lane / 4 * kSkewed +
                                     (1 + tile) * kTile + 6 -
                                     place_.lane % 4 * 2);
  }

  // [kStageKeys] of the warp `distance` warps away.
  __device__ __forceinline__ float* Parts(Part part, int parity,
                                          int distance = 0) const {
    return shared_ + distance * kSumsFloats + kTile * kSkewed +
           (parity * kNumParts + part) * kStageKeys;
  }

  __device__ __forceinline__ void Store(float* out, int head, int at,
                                        float value, bool add) const {
    float& to = out[static_cast<int64_t>(head) * p_.kv_len + at];
    to = add ? to + value : value;
  }

  const BlockParams& p_;
  const Place& place_;
  float* const shared_;  // of this warp
  float lse_[kThreadRows];
  uint32_t voting_ = 0;         // bit i: the thread's i-th row votes
  float window_[kRowTiles][2];  // unfinished block diagonals
};

// Sums of the probabilities along columns and diagonals, and votes.
template <int kSteps, bool kWithVotes>
__global__ void __launch_bounds__(kMaxWarps* kWarp, 1)
    SumsKernel(const __grid_constant__ BlockParams p) {
  const Place place(p);
  auto* stages = reinterpret_cast<__nv_bfloat16*>(raw_shared);
  constexpr int kRunElements = kStages * KeyRing<kSteps>::kStageElements;
  constexpr int kEarly = 2;  // stages before the run
  int key = place.key_begin - kEarly * kStageKeys;
  KeyRing<kSteps> ring(p, place, stages + place.run_of_block * kRunElements,
                       key);
  const Queries<kSteps> q(p, place);
  WarpSums<kWithVotes> sums(
      p, place, reinterpret_cast<float*>(stages + p.runs * kRunElements));

  const int num_stages = p.run_keys / kStageKeys + kEarly;
  for (int i = 0; i < num_stages; ++i, key += kStageKeys) {
    const uint32_t stage = ring.Next();
    if (i > kEarly) sums.EmitColumns(key - kStageKeys, i % 2 ^ 1);
#pragma unroll
    for (int t = 0; t < kStageKeys / kUnitKeys; ++t) {
      UnitScores s;
      Score(q, stage + t * kUnitKeys * KeyStride(kSteps) * 2, place.lane, s);
      Mask(p, place, key + t * kUnitKeys, s);
      sums.Add(s, t, i % 2);
    }
    sums.AddDiagonals(i >= kEarly, key, i % 2);
  }
  ring.Sync();
  sums.EmitColumns(key - kStageKeys, num_stages % 2 ^ 1);
}

}  // namespace overture::kernels::probe
