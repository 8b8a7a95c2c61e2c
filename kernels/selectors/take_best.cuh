// The best of a list of scores in shared memory, by one block of threads: exact
// radix select over the ordered bits of the floats, ties to the smaller index,
// NaN last. (select_top.cuh is for lists that fill a device.)
#pragma once

#include <cstdint>

#include "kernels/selectors/ordered_bits.h"

namespace overture::kernels::take_best {

inline constexpr int kThreads = 256;  // of the block: one per bin
inline constexpr int kWarps = kThreads / 32;

struct Shared {
  int32_t bins[kThreads];
  int32_t sums[kWarps];
  uint32_t digit;
  int32_t wanted;
  int32_t greater[kWarps];
  int32_t equal[kWarps];
};

// Scores above `bits` are taken, and the first `ties` of those that equal it.
struct Cut {
  uint32_t bits = 0;  // below all scores
  int32_t ties = 0;
};

// For the best `count` of scores[n]. All threads call together and get the same
// answer. REQUIRES 1 <= count < n.
__device__ __forceinline__ Cut FindCut(const float* scores, int n, int count,
                                       Shared& s) {
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int warp = thread / 32;
  uint32_t settled = 0;
  int32_t wanted = count;
#pragma unroll
  for (int shift = 24; shift >= 0; shift -= 8) {
    s.bins[thread] = 0;
    __syncthreads();
    const uint32_t above = shift == 24 ? 0 : ~0u << (shift + 8);
    for (int base = 0; base < n; base += kThreads) {
      const int i = base + thread;
      const uint32_t bits = i < n ? OrderedBits(__float_as_uint(scores[i])) : 0;
      const bool counts = i < n && (bits & above) == settled;
      // One addition for all lanes of a bin: the first digits are mostly alike.
      const int bin = counts ? bits >> shift & 255 : kThreads;
      const uint32_t peers = __match_any_sync(~0u, bin);
      if (counts && lane == __ffs(peers) - 1) {
        atomicAdd(&s.bins[bin], __popc(peers));
      }
    }
    __syncthreads();
    // From the top bin down.
    const int bin = kThreads - 1 - thread;
    const int32_t mine = s.bins[bin];
    int32_t sum = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int32_t before = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += before;
    }
    if (lane == 31) s.sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum += s.sums[w];
    if (sum - mine < wanted && wanted <= sum) {
      s.digit = bin;
      s.wanted = wanted - (sum - mine);
    }
    __syncthreads();
    settled |= s.digit << shift;
    wanted = s.wanted;
  }
  return {settled, wanted};
}

// Calls visit(index, rank among those taken) for every score taken. All threads
// call together; what visit wrote is visible to others after a barrier.
template <typename Visit>
__device__ __forceinline__ void ForEachTaken(const float* scores, int n,
                                             const Cut& cut, Shared& s,
                                             const Visit& visit) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  // Each warp takes a stretch of its own.
  const int stretch = (n + kThreads - 1) / kThreads * 32;
  const int begin = min(warp * stretch, n);
  const int end = min(begin + stretch, n);
  const auto bits_at = [&](int i) {
    return i < end ? OrderedBits(__float_as_uint(scores[i])) : 0;
  };
  int32_t greater = 0;
  int32_t equal = 0;
  for (int base = begin; base < end; base += 32) {
    const uint32_t bits = bits_at(base + lane);
    greater += __popc(__ballot_sync(~0u, bits > cut.bits));
    equal += __popc(__ballot_sync(~0u, bits == cut.bits && cut.ties > 0));
  }
  if (lane == 0) {
    s.greater[warp] = greater;
    s.equal[warp] = equal;
  }
  __syncthreads();
  greater = equal = 0;
  for (int w = 0; w < warp; ++w) {
    greater += s.greater[w];
    equal += s.equal[w];
  }
  const uint32_t below = (1u << lane) - 1;
  for (int base = begin; base < end; base += 32) {
    const uint32_t bits = bits_at(base + lane);
    const bool is_greater = bits > cut.bits;
    const bool is_equal = bits == cut.bits && cut.ties > 0;
    const uint32_t all_greater = __ballot_sync(~0u, is_greater);
    const uint32_t all_equal = __ballot_sync(~0u, is_equal);
    const int32_t g = greater + __popc(all_greater & below);
    const int32_t e = equal + __popc(all_equal & below);
    if (is_greater || (is_equal && e < cut.ties)) {
      visit(base + lane, g + min(e, cut.ties));
    }
    greater += __popc(all_greater);
    equal += __popc(all_equal);
  }
}

}  // namespace overture::kernels::take_best
