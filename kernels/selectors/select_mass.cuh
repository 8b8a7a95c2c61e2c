// How much of a ranked choice reaches a mass: the fewest, in rank order, whose
// weights add up to a share of all. A radix select whose bins hold weights
// instead of counts, one block a list, on what select_top chose: the choice
// that a mass leaves is a part of it. Weights are whole numbers (ProbeWeight),
// so that no order of additions matters.
#pragma once

#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "kernels/selectors/ordered_bits.h"
#include "kernels/selectors/select_top.cuh"

namespace overture::kernels::select_mass {

using select_top::kBins;
using select_top::kBinsPerThread;
using select_top::kThreads;

using BlockScan = cub::BlockScan<uint64_t, kThreads>;

// What is chosen of a list if there is no mass: `count` indices in `out`, the
// first `forced` scores and then the largest others, ascending each.
struct Choice {
  const float* scores;
  int32_t* out;
  int32_t count;
  int32_t forced;
};

struct Shared {
  unsigned long long bins[kBins];
  unsigned long long forced_weight;
  uint32_t smallest;  // settled bits of the smallest score kept
  uint64_t above;     // weight of all that rank before those
  uint64_t wanted;    // of all
  bool reached;
  typename BlockScan::TempStorage scan;
};

__device__ __forceinline__ uint32_t BitsAt(const Choice& list, int32_t i) {
  return OrderedBits(__float_as_uint(list.scores[list.out[i]]));
}

// Finds the bin in which the weights from the top reach s.wanted, and settles
// the bits of `round`. False if they do not.
__device__ __forceinline__ bool Settle(int round, Shared& s) {
  const int first_bin = kBins - kBinsPerThread * (threadIdx.x + 1);
  uint64_t bins[kBinsPerThread];
  uint64_t above = 0;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    bins[i] = s.bins[first_bin + i];
    above += bins[i];
  }
  BlockScan(s.scan).ExclusiveSum(above, above);
  above += s.above;
  const uint64_t wanted = s.wanted;
  const uint32_t smallest = s.smallest;
  if (threadIdx.x == 0) s.reached = false;
  __syncthreads();  // all have read it
#pragma unroll
  for (int i = kBinsPerThread - 1; i >= 0; --i) {
    if (above < wanted && wanted <= above + bins[i]) {
      s.reached = true;
      s.above = above;
      s.smallest = smallest | static_cast<uint32_t>(first_bin + i)
                                  << select_top::Shift(round);
    }
    above += bins[i];
  }
  __syncthreads();
  return s.reached;
}

// Leaves in list.out, still ascending, the fewest that reach `mass` of
// `weight`, that of all scores, the forced ones first; their number.
__device__ __forceinline__ int32_t Run(const Choice& list, float mass,
                                       uint64_t weight, Shared& s) {
  if (list.count == list.forced) return list.count;
  if (threadIdx.x == 0) s.forced_weight = 0;
  __syncthreads();
  unsigned long long mine = 0;
  for (int32_t i = threadIdx.x; i < list.forced; i += kThreads) {
    mine += ProbeWeight(list.scores[i]);
  }
  if (mine != 0) atomicAdd(&s.forced_weight, mine);
  __syncthreads();
  if (threadIdx.x == 0) {
    s.smallest = 0;
    s.above = s.forced_weight;
    s.wanted = WeightOfMass(mass, weight);
  }
  __syncthreads();
  if (s.above >= s.wanted) return list.forced;

  for (int round = 0; round < select_top::kRounds - 1; ++round) {
    for (int i = threadIdx.x; i < kBins; i += kThreads) s.bins[i] = 0;
    __syncthreads();
    const uint32_t smallest = s.smallest;
    for (int32_t i = list.forced + threadIdx.x; i < list.count; i += kThreads) {
      const uint32_t bits = BitsAt(list, i);
      if ((bits & select_top::Settled(round)) != smallest) continue;
      atomicAdd(
          &s.bins[bits >> select_top::Shift(round) & select_top::Mask(round)],
          static_cast<unsigned long long>(
              ProbeWeight(PositiveOfOrderedBits(bits))));
    }
    __syncthreads();
    // Only the first time: then all of them are too light, and stay.
    if (!Settle(round, s)) return list.count;
  }

  // Of those that equal the smallest as many as it takes, from the first on.
  const uint32_t smallest = s.smallest;
  const uint64_t each = ProbeWeight(PositiveOfOrderedBits(smallest));
  const auto num_equal =
      static_cast<int32_t>((s.wanted - s.above + each - 1) / each);
  int32_t greater = 0;
  int32_t equal = 0;
  for (int32_t base = list.forced; base < list.count; base += kThreads) {
    const int32_t i = base + threadIdx.x;
    const bool valid = i < list.count;
    const int32_t index = valid ? list.out[i] : 0;
    const uint32_t bits = valid ? BitsAt(list, i) : 0;
    const bool is_greater = bits > smallest;
    const bool is_equal = bits == smallest;
    uint64_t before = (is_greater ? 1 : 0) | (is_equal ? uint64_t{1} << 32 : 0);
    uint64_t total;
    BlockScan(s.scan).ExclusiveSum(before, before, total);
    const int32_t g = greater + static_cast<int32_t>(before);
    const int32_t e = equal + static_cast<int32_t>(before >> 32);
    // At or before what has been read.
    if (is_greater || (is_equal && e < num_equal)) {
      list.out[list.forced + g + min(e, num_equal)] = index;
    }
    greater += static_cast<int32_t>(total);
    equal += static_cast<int32_t>(total >> 32);
    __syncthreads();  // before the scan's memory is used again
  }
  return list.forced + greater + min(equal, num_equal);
}

}  // namespace overture::kernels::select_mass
