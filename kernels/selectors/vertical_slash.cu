#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cub/block/block_scan.cuh>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/causal_pairs.h"
#include "kernels/selectors/select_top.cuh"
#include "kernels/selectors/vertical_slash_gpu.h"
#include "kernels/selectors/work_order.cuh"

namespace overture::kernels {
namespace {

constexpr int kTileRows = kGpuTileRows;
constexpr int kTileKeys = kGpuTileKeys;
static_assert(kTileRows % kTileKeys == 0, "relative tiles are shared");
constexpr int kListThreads = 1024;  // of the block that makes a head's list
constexpr int kCellThreads = 256;   // a warp per cell
constexpr int kCellWarps = kCellThreads / 32;
constexpr int kColumnSteps = 4;  // of 32 columns, whose loads overlap

// Of what a head keeps.
struct Pick {
  int32_t count;
  int32_t forced;
};

// What every kernel of a launch knows. Relative tile r of a query tile that
// ends at e is keys [e - 64 (r + 1), e - 64 r).
struct Params {
  int64_t q_begin;
  int64_t q_end;
  int64_t kv_len;
  int64_t first_tile_begin;  // of query tile 0
  int32_t num_heads;
  int32_t num_q_tiles;
  int32_t num_tiles;            // relative tiles of the last query tile
  int32_t num_words;            // of 32 relative tiles, and one more bit
  const float* column_sums;     // [num_heads, kv_len]
  const float* diagonal_sums;   // [num_heads, kv_len]
  select_top::Scratch* select;  // [2 * num_heads]
  int32_t* verticals;           // [num_heads, vertical_stride]
  int32_t* slashes;             // [num_heads, slash_stride]
  int64_t vertical_stride;
  int64_t slash_stride;
  uint32_t* bits;    // [num_heads, num_words], the tiles of a head's list
  int32_t* ranks;    // [num_heads, num_words], tiles in the words before
  KeyRange* ranges;  // [num_heads, range_stride], at the end of each
  int64_t range_stride;
  PlanCell* cells;          // [num_heads, num_q_tiles]
  int32_t* columns;         // of cell (h, t) from (column_begin[h] + t * count)
  work_order::Item* items;  // [num_q_tiles, num_heads], last tile first
  unsigned long long* pairs;  // may be null
  Pick vertical[kMaxSelectorHeads];
  Pick slash[kMaxSelectorHeads];
  int64_t column_begin[kMaxSelectorHeads];
};

// Eight blocks per list: the columns of every head, then its distances.
template <int kRound>
__global__ void __launch_bounds__(select_top::kThreads, 3)
    SelectKernel(const __grid_constant__ Params p) {
  __shared__ select_top::Shared shared;
  const int list = blockIdx.x / select_top::kBlocks;
  const int block = blockIdx.x % select_top::kBlocks;
  const int head = list % p.num_heads;
  const bool is_column = list < p.num_heads;
  const Pick pick = is_column ? p.vertical[head] : p.slash[head];
  select_top::Run<kRound>(
      {.scores =
           (is_column ? p.column_sums : p.diagonal_sums) + head * p.kv_len,
       .out = is_column ? p.verticals + head * p.vertical_stride
                        : p.slashes + head * p.slash_stride,
       .n = p.kv_len,
       .count = pick.count,
       .forced = pick.forced},
      block, p.select[list], shared);
}

// A block per head: its distances as relative tiles, and those as ranges.
__global__ void __launch_bounds__(kListThreads)
    ListKernel(const __grid_constant__ Params p) {
  // Tiles, first tiles of ranges and last tiles of ranges, 20 bits each: a
  // block counts those of 1,024 words at a time.
  using BlockScan = cub::BlockScan<uint64_t, kListThreads>;
  __shared__ typename BlockScan::TempStorage scan;
  const int head = blockIdx.x;
  const int thread = threadIdx.x;
  uint32_t* bits = p.bits + int64_t{head} * p.num_words;
  int32_t* ranks = p.ranks + int64_t{head} * p.num_words;
  KeyRange* ranges_end = p.ranges + (head + 1) * p.range_stride;

  for (int i = thread; i < p.num_words; i += kListThreads) bits[i] = 0;
  __syncthreads();
  // Distance D holds keys of tiles floor(D / 64) to floor((D + 127) / 64).
  const int32_t* slashes = p.slashes + head * p.slash_stride;
  const auto first_tile = [](int32_t d) { return d / kTileKeys; };
  const auto last_tile = [](int32_t d) {
    return static_cast<int32_t>((int64_t{d} + kTileRows - 1) / kTileKeys);
  };
  for (int i = thread; i < p.slash[head].count; i += kListThreads) {
    const int32_t distance = slashes[i];
    const int32_t first = first_tile(distance);
    if (first >= p.num_tiles) continue;
    // Neighbours often share their tiles.
    if (i > 0 && first_tile(slashes[i - 1]) == first &&
        last_tile(slashes[i - 1]) == last_tile(distance)) {
      continue;
    }
    const int32_t last = min(last_tile(distance), p.num_tiles - 1);
    const uint64_t mask = ((uint64_t{2} << (last - first)) - 1) << (first % 32);
    atomicOr(&bits[first / 32], static_cast<uint32_t>(mask));
    if (mask >> 32 != 0) {
      atomicOr(&bits[first / 32 + 1], static_cast<uint32_t>(mask >> 32));
    }
  }
  __syncthreads();

  // The j-th range from the diagonal stands at ranges_end - 1 - j: its first
  // tile for now in num_tiles, its last in begin.
  int32_t num_tiles = 0;
  int32_t num_firsts = 0;
  int32_t num_lasts = 0;
  for (int base = 0; base < p.num_words; base += kListThreads) {
    const int word = base + thread;
    const bool valid = word < p.num_words;
    const uint32_t b = valid ? bits[word] : 0;
    const uint32_t before = valid && word > 0 ? bits[word - 1] >> 31 : 0;
    const uint32_t after = word + 1 < p.num_words ? bits[word + 1] << 31 : 0;
    uint32_t firsts = b & ~(b << 1 | before);
    uint32_t lasts = b & ~(b >> 1 | after);
    uint64_t sum = static_cast<uint64_t>(__popc(b)) |
                   static_cast<uint64_t>(__popc(firsts)) << 20 |
                   static_cast<uint64_t>(__popc(lasts)) << 40;
    uint64_t total;
    BlockScan(scan).ExclusiveSum(sum, sum, total);
    __syncthreads();  // before the scan's memory is used again
    constexpr uint64_t kField = (1 << 20) - 1;
    if (valid) ranks[word] = num_tiles + static_cast<int32_t>(sum & kField);
    KeyRange* range =
        ranges_end - 1 - num_firsts - static_cast<int32_t>(sum >> 20 & kField);
    for (; firsts != 0; firsts &= firsts - 1) {
      (range--)->num_tiles = word * 32 + __ffs(firsts) - 1;
    }
    range = ranges_end - 1 - num_lasts - static_cast<int32_t>(sum >> 40);
    for (; lasts != 0; lasts &= lasts - 1) {
      (range--)->begin = word * 32 + __ffs(lasts) - 1;
    }
    num_tiles += static_cast<int32_t>(total & kField);
    num_firsts += static_cast<int32_t>(total >> 20 & kField);
    num_lasts += static_cast<int32_t>(total >> 40);
  }
  __syncthreads();
  for (int j = thread; j < num_firsts; j += kListThreads) {
    KeyRange& range = ranges_end[-1 - j];
    const int32_t first = range.num_tiles;
    const int32_t last = range.begin;
    range = {.begin = -(last + 1) * kTileKeys, .num_tiles = last - first + 1};
  }
}

// A warp per cell: its share of the head's list, its single columns, its cost.
__global__ void __launch_bounds__(kCellThreads)
    CellKernel(const __grid_constant__ Params p) {
  __shared__ unsigned long long pairs[kCellWarps];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int64_t index = int64_t{blockIdx.x} * kCellWarps + warp;
  if (lane == 0) pairs[warp] = 0;
  if (index < int64_t{p.num_heads} * p.num_q_tiles) {
    const int head = static_cast<int>(index / p.num_q_tiles);
    const int tile = static_cast<int>(index % p.num_q_tiles);
    const int64_t s = p.first_tile_begin + int64_t{tile} * kTileRows;
    const int64_t e = s + kTileRows;
    const uint32_t* bits = p.bits + int64_t{head} * p.num_words;
    const Pick pick = p.vertical[head];

    // Relative tiles that start at key 0 or after.
    const int limit = static_cast<int>(e / kTileKeys);
    const int32_t num_tiles =
        p.ranks[int64_t{head} * p.num_words + limit / 32] +
        __popc(bits[limit / 32] & ((1u << (limit % 32)) - 1));

    // Columns before s that lie in none of the tiles.
    const int64_t column_begin =
        p.column_begin[head] + int64_t{tile} * pick.count;
    int32_t* out = p.columns + column_begin;
    const int32_t* verticals = p.verticals + head * p.vertical_stride;
    int32_t num_columns = 0;
    bool more = true;
    for (int base = 0; more && base < pick.count; base += 32 * kColumnSteps) {
      int32_t column[kColumnSteps];
      bool keep[kColumnSteps];
#pragma unroll
      for (int i = 0; i < kColumnSteps; ++i) {
        const int at = base + i * 32 + lane;
        column[i] = at < pick.count ? verticals[at] : INT32_MAX;
      }
#pragma unroll
      for (int i = 0; i < kColumnSteps; ++i) {
        keep[i] = column[i] < s;
        if (keep[i]) {
          const int r = static_cast<int>((e - 1 - column[i]) / kTileKeys);
          keep[i] = (bits[r / 32] >> (r % 32) & 1) == 0;
        }
      }
#pragma unroll
      for (int i = 0; i < kColumnSteps; ++i) {
        const uint32_t kept = __ballot_sync(~0u, keep[i]);
        if (keep[i]) {
          out[num_columns + __popc(kept & ((1u << lane) - 1))] = column[i];
        }
        num_columns += __popc(kept);
      }
      more = __any_sync(~0u, column[kColumnSteps - 1] < s);
    }

    if (lane == 0) {
      p.cells[index] = {.range_end = (head + 1) * p.range_stride,
                        .column_begin = column_begin,
                        .num_tiles = num_tiles,
                        .key_origin = static_cast<int32_t>(e),
                        .num_columns = num_columns};
      p.items[int64_t{p.num_q_tiles - 1 - tile} * p.num_heads + head] = {
          .cost = static_cast<uint32_t>(CellCost(num_tiles, num_columns)),
          .id = static_cast<int32_t>(index)};
      // The tiles of the diagonal are always there; those before s are seen in
      // whole by every row.
      const int64_t row_begin = max(s, p.q_begin);
      const int64_t row_end = min(e, p.q_end);
      pairs[warp] =
          (row_end - row_begin) *
              ((num_tiles - kTileRows / kTileKeys) * int64_t{kTileKeys} +
               num_columns) +
          CausalPairs(row_begin, row_end, s, min(e, p.kv_len));
    }
  }
  __syncthreads();
  if (threadIdx.x == 0 && p.pairs != nullptr) {
    unsigned long long sum = 0;
    for (int w = 0; w < kCellWarps; ++w) sum += pairs[w];
    atomicAdd(p.pairs, sum);
  }
}

// Where the parts of a plan lie in its scratch memory.
struct Layout {
  int64_t select;
  int64_t verticals;
  int64_t slashes;
  int64_t bits;
  int64_t ranks;
  int64_t ranges;
  int64_t cells;
  int64_t columns;
  int64_t items;
  int64_t spare;
  int64_t order;
  int64_t next_item;
  int64_t bytes;
};

// Sizes after Clamp, summed up.
struct Extent {
  int64_t num_heads;
  int64_t num_q_tiles;
  int64_t num_tiles;  // relative, of the last query tile
  int64_t vertical_stride = 0;
  int64_t slash_stride = 0;
  int64_t verticals = 0;  // of all heads

  int64_t num_words() const { return num_tiles / 32 + 1; }
  // A range has at least two tiles and one before the next.
  int64_t range_stride() const { return num_tiles / 3 + 1; }
};

Extent ExtentOf(int64_t num_q_tiles, int64_t end, int64_t kv_len,
                absl::Span<const VerticalSlashSize> sizes) {
  Extent extent{.num_heads = static_cast<int64_t>(sizes.size()),
                .num_q_tiles = num_q_tiles,
                .num_tiles = end / kTileKeys};
  for (const VerticalSlashSize& size : sizes) {
    const VerticalSlashSize clamped = Clamp(size, kv_len);
    extent.vertical_stride =
        std::max<int64_t>(extent.vertical_stride, clamped.vertical);
    extent.slash_stride = std::max<int64_t>(extent.slash_stride, clamped.slash);
    extent.verticals += clamped.vertical;
  }
  return extent;
}

Layout LayoutOf(const Extent& extent) {
  constexpr int64_t kAlignment = 256;
  Layout layout{};
  const auto take = [&layout](int64_t count, int64_t bytes_each) {
    const int64_t offset = layout.bytes;
    layout.bytes +=
        (count * bytes_each + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  };
  const int64_t heads = extent.num_heads;
  const int64_t cells = heads * extent.num_q_tiles;
  layout.select = take(2 * heads, sizeof(select_top::Scratch));
  layout.verticals = take(heads * extent.vertical_stride, sizeof(int32_t));
  layout.slashes = take(heads * extent.slash_stride, sizeof(int32_t));
  layout.bits = take(heads * extent.num_words(), sizeof(uint32_t));
  layout.ranks = take(heads * extent.num_words(), sizeof(int32_t));
  layout.ranges = take(heads * extent.range_stride(), sizeof(KeyRange));
  layout.cells = take(cells, sizeof(PlanCell));
  layout.columns = take(extent.num_q_tiles * extent.verticals, sizeof(int32_t));
  layout.items = take(cells, sizeof(work_order::Item));
  layout.spare = take(cells, sizeof(work_order::Item));
  layout.order = take(cells, sizeof(int32_t));
  layout.next_item = take(1, sizeof(int32_t));
  return layout;
}

int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

int64_t VerticalSlashScratchBytes(int64_t q_len, int64_t kv_len,
                                  absl::Span<const VerticalSlashSize> sizes) {
  // Rows that start in the middle of a query tile reach into one more.
  return LayoutOf(ExtentOf(RoundUp(q_len, kTileRows) / kTileRows + 1,
                           RoundUp(kv_len, kTileRows), kv_len, sizes))
      .bytes;
}

absl::StatusOr<VerticalSlashGpuPlan> LaunchVerticalSlashPlan(
    const VerticalSlashGpuParams& params, void* scratch, int64_t scratch_bytes,
    void* stream) {
  OVERTURE_RETURN_IF_ERROR(Validate(PlanShape{.q_begin = params.q_begin,
                                              .q_len = params.q_len,
                                              .kv_len = params.kv_len,
                                              .tile_rows = kTileRows,
                                              .tile_keys = kTileKeys}));
  const int64_t num_heads = static_cast<int64_t>(params.sizes.size());
  if (num_heads < 1 || num_heads > kMaxSelectorHeads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sizes has ", num_heads, " heads, must be 1 .. ", kMaxSelectorHeads));
  }
  const int64_t q_end = params.q_begin + params.q_len;
  const int64_t first_tile_begin = params.q_begin / kTileRows * kTileRows;
  const int64_t end = RoundUp(q_end, kTileRows);
  const Extent extent = ExtentOf((end - first_tile_begin) / kTileRows, end,
                                 params.kv_len, params.sizes);
  const int64_t num_items = num_heads * extent.num_q_tiles;
  if (num_items > std::numeric_limits<int32_t>::max()) {
    return absl::OutOfRangeError(
        absl::StrCat("plan has ", num_items, " work items, limit 2^31 - 1"));
  }
  const Layout layout = LayoutOf(extent);
  if (layout.bytes > scratch_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("vertical-slash plan: scratch of ", scratch_bytes,
                     " bytes, needs ", layout.bytes));
  }
  const auto at = [scratch]<typename T>(int64_t offset, T** to) {
    *to = reinterpret_cast<T*>(static_cast<std::byte*>(scratch) + offset);
  };
  Params p{.q_begin = params.q_begin,
           .q_end = q_end,
           .kv_len = params.kv_len,
           .first_tile_begin = first_tile_begin,
           .num_heads = static_cast<int32_t>(num_heads),
           .num_q_tiles = static_cast<int32_t>(extent.num_q_tiles),
           .num_tiles = static_cast<int32_t>(extent.num_tiles),
           .num_words = static_cast<int32_t>(extent.num_words()),
           .column_sums = params.column_sums,
           .diagonal_sums = params.diagonal_sums,
           .vertical_stride = extent.vertical_stride,
           .slash_stride = extent.slash_stride,
           .range_stride = extent.range_stride(),
           .pairs = reinterpret_cast<unsigned long long*>(params.pairs)};
  int32_t* order = nullptr;
  int32_t* next_item = nullptr;
  work_order::Item* spare = nullptr;
  at(layout.select, &p.select);
  at(layout.verticals, &p.verticals);
  at(layout.slashes, &p.slashes);
  at(layout.bits, &p.bits);
  at(layout.ranks, &p.ranks);
  at(layout.ranges, &p.ranges);
  at(layout.cells, &p.cells);
  at(layout.columns, &p.columns);
  at(layout.items, &p.items);
  at(layout.spare, &spare);
  at(layout.order, &order);
  at(layout.next_item, &next_item);
  int64_t column_begin = 0;
  for (int64_t head = 0; head < num_heads; ++head) {
    const VerticalSlashSize size = Clamp(params.sizes[head], params.kv_len);
    p.vertical[head] = {size.vertical,
                        std::min(size.vertical, size.forced_columns)};
    p.slash[head] = {size.slash, std::min(size.slash, size.forced_distances)};
    p.column_begin[head] = column_begin;
    column_begin += extent.num_q_tiles * size.vertical;
  }

  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const unsigned heads = static_cast<unsigned>(num_heads);
  static_assert(select_top::kRounds == 4);
  for (void (*round)(Params) :
       {SelectKernel<0>, SelectKernel<1>, SelectKernel<2>, SelectKernel<3>}) {
    round<<<2 * heads * select_top::kBlocks, select_top::kThreads, 0,
            cuda_stream>>>(p);
    OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("vertical-slash SelectKernel"));
  }
  ListKernel<<<heads, kListThreads, 0, cuda_stream>>>(p);
  OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("vertical-slash ListKernel"));
  CellKernel<<<(num_items + kCellWarps - 1) / kCellWarps, kCellThreads, 0,
               cuda_stream>>>(p);
  OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("vertical-slash CellKernel"));
  const uint32_t max_cost =
      CellCost(p.num_tiles, static_cast<int32_t>(extent.vertical_stride));
  work_order::SortKernel<<<1, work_order::kThreads, 0, cuda_stream>>>(
      {.items = p.items,
       .spare = spare,
       .ids = order,
       .num_items = num_items,
       .num_passes = (static_cast<int32_t>(std::bit_width(max_cost)) + 7) / 8});
  OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("work-order SortKernel"));

  return VerticalSlashGpuPlan{.plan = {.q_begin = params.q_begin,
                                       .q_len = params.q_len,
                                       .kv_len = params.kv_len,
                                       .num_lists = p.num_heads,
                                       .num_q_tiles = p.num_q_tiles,
                                       .cells = p.cells,
                                       .ranges = p.ranges,
                                       .columns = p.columns,
                                       .order = order,
                                       .next_item = next_item},
                              .verticals = p.verticals,
                              .slashes = p.slashes,
                              .vertical_stride = extent.vertical_stride,
                              .slash_stride = extent.slash_stride};
}

}  // namespace overture::kernels
