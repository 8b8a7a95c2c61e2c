// The indices of the largest scores of many lists at once, exactly: radix
// select over the ordered bits of the floats, eight blocks a list, four
// launches, each of which reads the lists once.
//
//   rounds 0 to 2  count the next 11, 11 and 10 bits of the scores that share
//                  the bits settled so far; the round after adds the blocks'
//                  counts up and so settles those bits of the smallest score
//                  that is still taken
//   round 3        every block writes what it takes of its slice, in order; the
//                  counts have told it how much the blocks before it take
//
// Nothing is sorted, nothing but counts is kept in between, and no block waits
// for another within a launch.
#pragma once

#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "kernels/selectors/ordered_bits.h"

namespace overture::kernels::select_top {

inline constexpr int kBlocks = 8;  // of a list
inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kPerThread = 8;  // scores of a chunk
inline constexpr int kChunk = kThreads * kPerThread;
inline constexpr int kRounds = 4;
inline constexpr int kBins = 2048;
inline constexpr int kBinsPerThread = kBins / kThreads;
static_assert(kBinsPerThread == 4, "counts travel as int4");
inline constexpr int32_t kMaxScores = 1 << 30;  // of a list

// The bits that a round counts.
__device__ constexpr int Shift(int round) {
  return round == 0 ? 21 : round == 1 ? 10 : 0;
}
__device__ constexpr uint32_t Mask(int round) {
  return round == 2 ? 0x3ff : 0x7ff;
}
// Those that are settled when it starts.
__device__ constexpr uint32_t Settled(int round) {
  return round == 0 ? 0 : ~0u << Shift(round - 1);
}

// Takes the `wanted` largest of the scores [begin, end), ties to the smaller
// index, NaN last, and writes their indices, ascending.
// REQUIRES wanted <= end - begin.
struct List {
  const float* scores;
  int32_t begin;
  int32_t end;  // at most kMaxScores
  int32_t wanted;
  int32_t* out;  // [wanted]
};

// What a block hands to itself in the next round.
struct Progress {
  uint32_t smallest;       // settled bits of the smallest score taken
  int32_t wanted;          // scores to take among those that share these bits
  int32_t greater_before;  // scores above them in the slices before
  int32_t equal_before;    // scores that share them in the slices before
};

// Memory of one list between the rounds, contents of no matter before them.
struct Scratch {
  Progress progress[kBlocks];
  int32_t counts[2][kBlocks][kBins];  // by round in turn
};

struct Shared {
  int32_t counts[kBins];
  Progress progress;
  int32_t warps[2][kWarps];  // by chunk in turn
  typename cub::BlockScan<uint64_t, kThreads>::TempStorage scan;
};

// The ordered bits of a thread's scores of a chunk, 0 for those outside
// [begin, end): they rank below all, and no more is taken than there are
// inside. A warp's scores are neighbours.
struct Chunk {
  uint32_t bits[kPerThread];

  __device__ __forceinline__ Chunk(const List& list, int32_t chunk) {
    const float* mine = list.scores + Index(chunk, 0);
    if (chunk * kChunk >= list.begin && (chunk + 1) * kChunk <= list.end) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        bits[i] = __float_as_uint(mine[i * 32]);
      }
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) bits[i] = OrderedBits(bits[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const int32_t at = Index(chunk, i);
        bits[i] = at >= list.begin && at < list.end
                      ? OrderedBits(__float_as_uint(mine[i * 32]))
                      : 0;
      }
    }
  }

  // Of the thread's i-th score.
  static __device__ __forceinline__ int32_t Index(int32_t chunk, int i) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    return chunk * kChunk + (warp * kPerThread + i) * 32 + lane;
  }
};

// The chunks of a block's slice of a list.
struct Slice {
  int32_t first;
  int32_t last;

  __device__ __forceinline__ Slice(int32_t length, int block) {
    const int32_t num_chunks = (length + kChunk - 1) / kChunk;
    const int32_t slice = (num_chunks + kBlocks - 1) / kBlocks;
    first = min(block * slice, num_chunks);
    last = min(first + slice, num_chunks);
  }
};

// Adds up what all blocks counted in `round` and settles its bits.
__device__ __forceinline__ void Settle(int round, int block, Scratch& scratch,
                                       Shared& s) {
  // From the top bin down: bins of all blocks below, of those before above 32
  // bits.
  const int first_bin = kBins - kBinsPerThread * (threadIdx.x + 1);
  uint64_t bins[kBinsPerThread] = {};
  for (int b = 0; b < kBlocks; ++b) {
    const int4 counts = *reinterpret_cast<const int4*>(
        &scratch.counts[round % 2][b][first_bin]);
    const uint64_t unit = b < block ? (uint64_t{1} << 32 | 1) : 1;
    bins[0] += counts.x * unit;
    bins[1] += counts.y * unit;
    bins[2] += counts.z * unit;
    bins[3] += counts.w * unit;
  }
  uint64_t above = bins[0] + bins[1] + bins[2] + bins[3];
  cub::BlockScan<uint64_t, kThreads>(s.scan).ExclusiveSum(above, above);
  const Progress progress = s.progress;
  __syncthreads();  // all have read it
#pragma unroll
  for (int i = kBinsPerThread - 1; i >= 0; --i) {
    const auto all_above = static_cast<int32_t>(above);
    const auto all = static_cast<int32_t>(bins[i]);
    if (all_above < progress.wanted && progress.wanted <= all_above + all) {
      s.progress = {
          .smallest = progress.smallest | static_cast<uint32_t>(first_bin + i)
                                              << Shift(round),
          .wanted = progress.wanted - all_above,
          .greater_before =
              progress.greater_before + static_cast<int32_t>(above >> 32),
          .equal_before = static_cast<int32_t>(bins[i] >> 32)};
    }
    above += bins[i];
  }
  __syncthreads();
}

// Writes what this block takes of its slice.
__device__ __forceinline__ void Emit(const List& list, const Slice& slice,
                                     Shared& s) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const uint32_t below = (1u << lane) - 1;
  const uint32_t smallest = s.progress.smallest;
  const int32_t wanted = s.progress.wanted;
  int32_t greater = s.progress.greater_before;
  int32_t equal = s.progress.equal_before;
  for (int32_t c = slice.first; c < slice.last; ++c) {
    const Chunk chunk(list, c);
    int32_t packed = 0;  // of the warp: greater below, equal above 16 bits
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      packed += __popc(__ballot_sync(~0u, chunk.bits[i] > smallest)) +
                (__popc(__ballot_sync(~0u, chunk.bits[i] == smallest)) << 16);
    }
    // Two sets in turn: one barrier a chunk.
    int32_t* warps = s.warps[c & 1];
    if (lane == 0) warps[warp] = packed;
    __syncthreads();
    int32_t before = 0;
    int32_t total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp) before = total;
      total += warps[w];
    }
    int32_t my_greater = greater + (before & 0xffff);
    int32_t my_equal = equal + (before >> 16);
    if (packed != 0) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const bool is_greater = chunk.bits[i] > smallest;
        const bool is_equal = chunk.bits[i] == smallest;
        // Most of a warp's 32 neighbours hold nothing that is taken.
        if (!__any_sync(~0u, is_greater || is_equal)) continue;
        const uint32_t all_greater = __ballot_sync(~0u, is_greater);
        const uint32_t all_equal = __ballot_sync(~0u, is_equal);
        const int32_t g = my_greater + __popc(all_greater & below);
        const int32_t e = my_equal + __popc(all_equal & below);
        if (is_greater || (is_equal && e < wanted)) {
          list.out[g + min(e, wanted)] = Chunk::Index(c, i);
        }
        my_greater += __popc(all_greater);
        my_equal += __popc(all_equal);
      }
    }
    greater += total & 0xffff;
    equal += total >> 16;
  }
}

// One round of one block of a list.
template <int kRound>
__device__ __forceinline__ void Run(const List& list, int block,
                                    Scratch& scratch, Shared& s) {
  if (list.wanted == 0) return;
  const Slice slice(list.end, block);
  if (threadIdx.x == 0) {
    s.progress =
        kRound == 0 ? Progress{.wanted = list.wanted} : scratch.progress[block];
  }
  __syncthreads();
  if constexpr (kRound > 0) Settle(kRound - 1, block, scratch, s);
  if constexpr (kRound + 1 == kRounds) {
    Emit(list, slice, s);
  } else {
    const uint32_t smallest = s.progress.smallest;
    for (int i = threadIdx.x; i < kBins; i += kThreads) s.counts[i] = 0;
    __syncthreads();
    for (int32_t c = slice.first; c < slice.last; ++c) {
      const Chunk chunk(list, c);
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        if ((chunk.bits[i] & Settled(kRound)) == smallest) {
          atomicAdd(&s.counts[chunk.bits[i] >> Shift(kRound) & Mask(kRound)],
                    1);
        }
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kBins; i += kThreads) {
      scratch.counts[kRound % 2][block][i] = s.counts[i];
    }
    if (threadIdx.x == 0) scratch.progress[block] = s.progress;
  }
}

// What all scores of a block's slice weigh, by all its threads, to *total.
__device__ __forceinline__ void Weigh(const List& list, int block,
                                      unsigned long long* total) {
  const Slice slice(list.end, block);
  uint64_t weight = 0;
  for (int32_t c = slice.first; c < slice.last; ++c) {
    const Chunk chunk(list, c);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      weight += ProbeWeight(PositiveOfOrderedBits(chunk.bits[i]));
    }
  }
  for (int lane = 16; lane > 0; lane /= 2) {
    weight += __shfl_xor_sync(~0u, weight, lane);
  }
  if (threadIdx.x % 32 == 0 && weight != 0) {
    atomicAdd(total, static_cast<unsigned long long>(weight));
  }
}

}  // namespace overture::kernels::select_top
