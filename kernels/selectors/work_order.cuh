// Sorts work items by cost, most expensive first, stably, in one block: a radix
// sort of 8 bits a pass. (cub::DeviceRadixSort would launch five kernels for as
// few items, and ask a device for the size of its scratch memory.)
#pragma once

#include <cstdint>
#include <cub/block/block_scan.cuh>

namespace overture::kernels::work_order {

inline constexpr int kThreads = 1024;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kDigits = 256;
inline constexpr int kSteps = 4;  // of 32 items, whose loads overlap
inline constexpr int kPlacesPerThread = kDigits * kWarps / kThreads;
// One more than there are warps, or all digits of a warp share a bank.
inline constexpr int kDigitStride = kWarps + 1;

struct Item {
  uint32_t cost;
  int32_t id;
};

struct Params {
  Item* items;   // [num_items], overwritten
  Item* spare;   // [num_items]
  int32_t* ids;  // [num_items], sorted
  int64_t num_items;
  int32_t num_passes;  // >= 1; costs are below 2^(8 num_passes)
};

// One block.
__global__ void __launch_bounds__(kThreads) SortKernel(Params p) {
  using BlockScan = cub::BlockScan<int32_t, kThreads>;
  // First how many items of a digit a warp holds, then where the next one goes:
  // digit by digit, within a digit warp by warp.
  __shared__ int32_t places[kDigits * kDigitStride];
  __shared__ typename BlockScan::TempStorage scan;
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  // Each warp sorts a stretch of its own.
  constexpr int64_t kStretchUnit = 32 * kSteps;
  const int64_t stretch = (p.num_items + kWarps * kStretchUnit - 1) /
                          (kWarps * kStretchUnit) * kStretchUnit;
  const int64_t begin = min(warp * stretch, p.num_items);
  const int64_t end = min(begin + stretch, p.num_items);
  Item* from = p.items;
  Item* to = p.spare;
  for (int pass = 0; pass < p.num_passes; ++pass) {
    // Calls visit(item, place, rank) in the order of items, 32 at a time, with
    // the rank among the items of one digit in these 32, then moves the place
    // on.
    const auto for_each = [&](const auto& visit) {
      for (int64_t base = begin; base < end; base += kStretchUnit) {
        Item items[kSteps];
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          const int64_t at = base + i * 32 + lane;
          items[i] = at < end ? from[at] : Item{0, -1};
        }
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          const bool valid = items[i].id >= 0;
          // Counted from the largest down; one more for lanes without an item.
          const int digit =
              valid
                  ? kDigits - 1 - (items[i].cost >> (8 * pass) & (kDigits - 1))
                  : kDigits;
          // (Eight ballots in its place took twice as long.)
          const uint32_t peers = __match_any_sync(~0u, digit);
          const int rank = __popc(peers & ((1u << lane) - 1));
          if (valid) visit(items[i], places[digit * kDigitStride + warp], rank);
          __syncwarp();
          if (valid && rank == 0) {
            places[digit * kDigitStride + warp] += __popc(peers);
          }
          __syncwarp();
        }
      }
    };

    for (int i = thread; i < kDigits * kDigitStride; i += kThreads)
      places[i] = 0;
    __syncthreads();
    for_each([](const Item&, int32_t, int) {});
    __syncthreads();
    // In order of digits, then of warps.
    int32_t* my_places = places +
                         thread * kPlacesPerThread / kWarps * kDigitStride +
                         thread * kPlacesPerThread % kWarps;
    int32_t mine[kPlacesPerThread];
#pragma unroll
    for (int i = 0; i < kPlacesPerThread; ++i) mine[i] = my_places[i];
    BlockScan(scan).ExclusiveSum(mine, mine);
#pragma unroll
    for (int i = 0; i < kPlacesPerThread; ++i) my_places[i] = mine[i];
    __syncthreads();
    const bool is_last = pass + 1 == p.num_passes;
    for_each([&](const Item& item, int32_t place, int rank) {
      if (is_last) {
        p.ids[place + rank] = item.id;
      } else {
        to[place + rank] = item;
      }
    });
    __syncthreads();
    Item* const sorted = to;
    to = from;
    from = sorted;
  }
}

}  // namespace overture::kernels::work_order
