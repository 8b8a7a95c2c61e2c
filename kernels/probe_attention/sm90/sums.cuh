// Pass 2 of probe attention on sm_90a: probabilities again, summed up along
// columns and diagonals.
//
// Diagonals as in ../sums.cuh, with all 64 rows of a head in one warp: blocks
// of 8 keys and 8 rows on one block diagonal come one after the other to the
// same thread, which adds them up element by element in a window of eight; a
// finished one is summed along its own 15 diagonals through the warp's shared
// memory. A distance belongs to the run in which its last row meets the key; a
// run starts 64 keys early for the other rows. Every output has one writer and
// one order of additions.
#pragma once

#include "kernels/probe_attention/sm90/frame.cuh"

namespace overture::kernels::probe::sm90 {

inline constexpr int kRowBlocks = kRows / kTile;  // of a window
static_assert(kStepKeys / kTile == kRowBlocks, "a step turns the window once");
// Finished block diagonals, one row per key modulo 8, the newest of the step
// before in front.
inline constexpr int kRowFloats = kStepKeys + kTile;

template <int kSteps>
struct SumsShared {
  Shared<kSteps> frame;
  float finished[kMaxWarps][kTile * kRowFloats];
  float votes[2][kMaxWarps][kStepKeys];  // of a step, by step in turn
};

// What a warp adds up, step by step.
template <bool kWithVotes>
class HeadSums {
 public:
  // `finished` is the warp's, `votes` the block's.
  __device__ HeadSums(const BlockParams& p, const Place& place,
                      float (&finished)[kTile * kRowFloats],
                      float (&votes)[2][kMaxWarps][kStepKeys], int key)
      : p_(p), place_(place), finished_(finished), votes_(votes), key_(key) {
#pragma unroll
    for (int i = 0; i < kTileThreadRows; ++i) {
      const int row = place.Row(i);
      lse_[i] =
          row >= p.first_row ? p.row_lse[place.q_head * kRows + row] : INFINITY;
      window_[i / 2][i % 2] = 0;
      if (row >= p.window_row) voting_ |= 1u << i;
    }
    *Finished(-1) = {0, 0};
  }

  // Adds tile `tile` of the step.
  __device__ __forceinline__ void Add(TileScores& s, int tile) {
    Mask(p_, place_, key_ + tile * kUnitKeys, s);
    float column[kGroups];
    float vote[kGroups] = {};
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int keys = kGroups * tile + g;  // 8 of the step
      float sum[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < kTileThreadRows; ++i) {
        const int b = i / 2, e = i % 2;
        const float prob =
            ptx::Exp2(fmaf(s[4 * b + 2 * g + e], p_.scale_log2, -lse_[i]));
        sum[e] += prob;
        if (kWithVotes && (voting_ >> i & 1)) vote[g] += prob;
        float& diagonal = window_[(b - keys) & (kRowBlocks - 1)][e];
        diagonal = b == 0 ? prob : diagonal + prob;
      }
      column[g] = sum[0] + sum[1];
      // The block diagonal that ends with the last rows.
      const float(&done)[2] =
          window_[(kRowBlocks - 1 - keys) & (kRowBlocks - 1)];
      *Finished(keys) = {done[1], done[0]};
    }
    const int lane = place_.lane;
    const int at = tile * kUnitKeys + lane % 2 * kTile + lane / 4;
    const float sum = AddQuads(column[0], column[1], lane);
    if (lane % 4 < 2 && owned_ && p_.column_sums != nullptr &&
        key_ + at <= p_.last) {
      Store(p_.column_sums, place_.q_head, key_ + at, sum, p_.add_sums);
    }
    if (kWithVotes) {
      const float votes = AddQuads(vote[0], vote[1], lane);
      if (lane % 4 < 2) Votes(place_.head)[at] = votes;
    }
  }

  // After a step's last tile.
  __device__ __forceinline__ void EndStep() {
    __syncwarp();
#pragma unroll
    for (int at = place_.lane; at < kStepKeys; at += kWarp) {
      // The diagonal that ends at key + at.
      const float* from = finished_ + kTile + at;
      float sum = 0;
#pragma unroll
      for (int g = 0; g < kTile; ++g) sum += from[g * (kRowFloats - 1)];
      const int distance = p_.last - (key_ + at);
      if (owned_ && p_.diagonal_sums != nullptr && distance >= 0) {
        Store(p_.diagonal_sums, place_.q_head, distance, sum, p_.add_sums);
      }
    }
    __syncwarp();
    // What the first diagonals of the next step begin with.
    *Finished(-1) = *Finished(kRowBlocks - 1);
    if (kWithVotes) {
      // Two sets in turn: one barrier a step.
      ptx::NamedBarrierSync(kVotesBarrier, 128 * p_.num_heads);
      if (owned_ && place_.head == 0) EmitVotes();
      parity_ ^= 1;
    }
    key_ += kStepKeys;
    owned_ = true;
  }

 private:
  static constexpr uint32_t kVotesBarrier = 1;

  // Of the step, once all heads have left theirs.
  __device__ __forceinline__ void EmitVotes() const {
    for (int at = place_.lane; at < kStepKeys; at += kWarp) {
      if (key_ + at > p_.last) return;
      float sum = 0;
      for (int head = 0; head < p_.num_heads; ++head) sum += Votes(head)[at];
      Store(p_.window_votes, place_.kv_head, key_ + at, sum / p_.group,
            p_.add_votes);
    }
  }

  // [kStepKeys] of this run and a head of the launch.
  __device__ __forceinline__ float* Votes(int head) const {
    return votes_[parity_][head * 4 + place_.warp];
  }

  // Where this thread's two elements of the block that ends at 8 keys of the
  // step stand: element (key g, row r) in row g, column 7 - r, so that what a
  // diagonal takes from each row moves by one.
  __device__ __forceinline__ float2* Finished(int keys) const {
    return reinterpret_cast<float2*>(finished_ + place_.lane / 4 * kRowFloats +
                                     (1 + keys) * kTile + 6 -
                                     place_.lane % 4 * 2);
  }

  __device__ __forceinline__ void Store(float* out, int head, int at,
                                        float value, bool add) const {
    float& to = out[int64_t{head} * p_.kv_len + at];
    to = add ? to + value : value;
  }

  const BlockParams& p_;
  const Place& place_;
  float (&finished_)[kTile * kRowFloats];
  float (&votes_)[2][kMaxWarps][kStepKeys];
  int key_;             // first of the step
  bool owned_ = false;  // not of the first step, which is early
  int parity_ = 0;
  float lse_[kTileThreadRows];
  uint32_t voting_ = 0;          // bit i: the thread's row i votes
  float window_[kRowBlocks][2];  // unfinished block diagonals
};

template <int kSteps, bool kWithVotes>
__global__ void __launch_bounds__(kMaxThreads, 1)
    SumsKernel(const __grid_constant__ KernelParams params) {
  extern __shared__ __align__(1024) uint8_t shared[];
  auto& s = *reinterpret_cast<SumsShared<kSteps>*>(shared);
  const BlockParams& p = params.block;
  const int num_steps = p.run_keys / kStepKeys + 1;
  RunRoles(params, s.frame, num_steps * kStepTiles, kStepKeys, [&] {
    const Place place(p);
    HeadSums<kWithVotes> sums(p, place, s.finished[place.head * 4 + place.warp],
                              s.votes, place.run * p.run_keys - kStepKeys);
    ForEachTile(
        place, s.frame, num_steps,
        [&](TileScores& scores, int tile) { sums.Add(scores, tile); },
        [&] { sums.EndStep(); });
  });
}

}  // namespace overture::kernels::probe::sm90
