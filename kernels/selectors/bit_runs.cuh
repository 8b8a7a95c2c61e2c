// Runs of set bits as pairs of numbers, by one block of threads.
#pragma once

#include <cstdint>
#include <cub/block/block_scan.cuh>

namespace overture::kernels::bit_runs {

template <int kThreads>
using Scan = cub::BlockScan<uint64_t, kThreads>;

struct Totals {
  int32_t bits = 0;
  int32_t runs = 0;
};

// Writes pair(first, last) of the j-th run from bit 0 on to *at(j), an int2,
// and calls count_before(word, bits set in the words before). All threads call
// together and get the same answer; what was written is visible to all after a
// barrier. REQUIRES bits that other threads wrote to be visible.
template <int kThreads, typename At, typename Pair, typename CountBefore>
__device__ __forceinline__ Totals
Write(const uint32_t* bits, int num_words,
      typename Scan<kThreads>::TempStorage& scan, const At& at,
      const Pair& pair, const CountBefore& count_before) {
  Totals totals;
  int32_t lasts_before = 0;
  for (int base = 0; base < num_words; base += kThreads) {
    const int word = base + threadIdx.x;
    const bool valid = word < num_words;
    const uint32_t b = valid ? bits[word] : 0;
    const uint32_t before = valid && word > 0 ? bits[word - 1] >> 31 : 0;
    const uint32_t after = word + 1 < num_words ? bits[word + 1] << 31 : 0;
    uint32_t firsts = b & ~(b << 1 | before);
    uint32_t lasts = b & ~(b >> 1 | after);
    // Bits, first ones and last ones of runs, 20 bits each: a pass counts those
    // of kThreads words.
    static_assert(kThreads * 32 < 1 << 20);
    uint64_t sum = static_cast<uint64_t>(__popc(b)) |
                   static_cast<uint64_t>(__popc(firsts)) << 20 |
                   static_cast<uint64_t>(__popc(lasts)) << 40;
    uint64_t total;
    Scan<kThreads>(scan).ExclusiveSum(sum, sum, total);
    __syncthreads();  // before the scan's memory is used again
    constexpr uint64_t kField = (1 << 20) - 1;
    if (valid)
      count_before(word, totals.bits + static_cast<int32_t>(sum & kField));
    int32_t j = totals.runs + static_cast<int32_t>(sum >> 20 & kField);
    for (; firsts != 0; firsts &= firsts - 1) {
      at(j++)->x = word * 32 + __ffs(firsts) - 1;
    }
    j = lasts_before + static_cast<int32_t>(sum >> 40);
    for (; lasts != 0; lasts &= lasts - 1) {
      at(j++)->y = word * 32 + __ffs(lasts) - 1;
    }
    totals.bits += static_cast<int32_t>(total & kField);
    totals.runs += static_cast<int32_t>(total >> 20 & kField);
    lasts_before += static_cast<int32_t>(total >> 40);
  }
  __syncthreads();
  for (int j = threadIdx.x; j < totals.runs; j += kThreads) {
    int2& run = *at(j);
    run = pair(run.x, run.y);
  }
  return totals;
}

}  // namespace overture::kernels::bit_runs
