// Work items by cost, most expensive first. Costs are told apart by CostDigit
// alone, so that one counting suffices: the kernel that knows the costs counts
// digits, this one gives every item a place among its digit's. Items of one
// digit come in no particular order; no result depends on it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/selectors/scratch_layout.h"
#include "kernels/selectors/work_order.h"

namespace overture::kernels::work_order {

inline constexpr int kDigits = 256;
inline constexpr int kThreads = kDigits;
inline constexpr int kPerThread = 4;
inline constexpr int kBlockItems = kThreads * kPerThread;

// Item (head, tile) stands at (num_q_tiles - 1 - tile) * num_heads + head.
struct Params {
  uint8_t* digits;     // [num_heads * num_q_tiles]
  int32_t* counts;     // [kDigits], zeros before the first Count
  int32_t* placed;     // [kDigits], zeros before PlaceKernel
  int32_t* ids;        // [num_heads * num_q_tiles]: head * num_q_tiles + tile
  int32_t* next_item;  // DeviceTilePlan's
  int32_t num_heads;
  int32_t num_q_tiles;

  __host__ __device__ int64_t num_items() const {
    return int64_t{num_heads} * num_q_tiles;
  }
};

// One thread per item.
__device__ __forceinline__ void Count(const Params& p, int32_t head,
                                      int32_t tile, uint32_t cost) {
  const int32_t digit = CostDigit(cost);
  p.digits[int64_t{p.num_q_tiles - 1 - tile} * p.num_heads + head] =
      static_cast<uint8_t>(digit);
  atomicAdd(&p.counts[digit], 1);
}

static __global__ void __launch_bounds__(kThreads) PlaceKernel(Params p) {
  using BlockScan = cub::BlockScan<int32_t, kThreads>;
  __shared__ typename BlockScan::TempStorage scan;
  __shared__ int32_t counts[kDigits];  // of this block
  __shared__ int32_t begins[kDigits];  // of its items
  // Where each digit's items begin, the largest first.
  const int digit = kDigits - 1 - static_cast<int>(threadIdx.x);
  int32_t begin = p.counts[digit];
  BlockScan(scan).ExclusiveSum(begin, begin);

  counts[threadIdx.x] = 0;
  __syncthreads();
  const int64_t first = int64_t{blockIdx.x} * kBlockItems + threadIdx.x;
  int32_t digits[kPerThread];
  int32_t ranks[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t item = first + i * kThreads;
    if (item >= p.num_items()) continue;
    digits[i] = p.digits[item];
    ranks[i] = atomicAdd(&counts[digits[i]], 1);
  }
  __syncthreads();
  if (counts[digit] > 0) {
    begins[digit] = begin + atomicAdd(&p.placed[digit], counts[digit]);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t item = first + i * kThreads;
    if (item >= p.num_items()) continue;
    const auto head = static_cast<int32_t>(item % p.num_heads);
    const auto from_last = static_cast<int32_t>(item / p.num_heads);
    p.ids[begins[digits[i]] + ranks[i]] =
        head * p.num_q_tiles + p.num_q_tiles - 1 - from_last;
  }
}

// Takes the arrays of `p`.
inline void LayOut(int64_t num_items, ScratchLayout& layout, Params& p) {
  layout.Take(num_items, &p.digits);
  layout.Take(2 * kDigits, &p.counts);
  p.placed = p.counts + kDigits;
  layout.Take(num_items, &p.ids);
  layout.Take(1, &p.next_item);
}

// Before the kernel that counts...
inline absl::Status Begin(const Params& p, cudaStream_t stream) {
  return CudaStatus(
      cudaMemsetAsync(p.counts, 0, 2 * kDigits * sizeof(int32_t), stream),
      "clearing the counts of work items");
}

// ...and after it.
inline absl::Status Finish(const Params& p, cudaStream_t stream) {
  const int64_t blocks = (p.num_items() + kBlockItems - 1) / kBlockItems;
  PlaceKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(p);
  return CudaLaunchStatus("work-order PlaceKernel");
}

}  // namespace overture::kernels::work_order
