// A block of threads per cell: key tiles as bits in shared memory, counted from
// the end of the query tile, those of the head's distances and of the tile's
// blocks; then ranges of them, columns outside of them, and blocks of which
// nothing is kept.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/causal_pairs.h"
#include "kernels/selectors/bit_runs.cuh"
#include "kernels/selectors/hybrid_gpu.h"
#include "kernels/selectors/scratch_layout.h"
#include "kernels/selectors/work_order.cuh"

namespace overture::kernels {
namespace {

constexpr int kTileRows = kGpuTileRows;
constexpr int kTileKeys = kGpuTileKeys;
constexpr int kBlockTiles = kMeanBlockKeys / kTileKeys;
static_assert(kTileRows == kBlockTileRows && kBlockTiles == 2);
constexpr int kThreads = 256;  // of a cell
constexpr int kWarps = kThreads / 32;
// The attention kernel reads so many intervals of means at once.
constexpr int64_t kMeanUnit = 32;

struct Params {
  // The choice's.
  int64_t kv_len;
  int32_t num_heads;
  int32_t choice_words;  // of tile_bits
  const int32_t* verticals;
  int64_t vertical_stride;
  const int32_t* counts;
  const uint32_t* tile_bits;
  // The rows'.
  const uint32_t* blocks;  // [num_heads, num_q_tiles, block_words], or null
  int32_t block_words;
  int32_t num_q_tiles;
  int64_t q_begin;
  int64_t q_end;
  int64_t first_tile_begin;   // of query tile 0
  unsigned long long* pairs;  // may be null
  // What is written.
  PlanCell* cells;  // [num_heads, num_q_tiles]
  int2* ranges;     // [num_heads, num_q_tiles, range_stride], at the end
  int64_t range_stride;
  int32_t* columns;  // of cell (h, t) from (column_begin[h] + t * max)
  int64_t* mean_offsets;
  int2* mean_blocks;    // [num_heads, num_q_tiles, mean_stride]
  int64_t mean_stride;  // 0: no head corrects
  work_order::Params order;
  int32_t max_columns[kMaxSelectorHeads];
  int64_t column_begin[kMaxSelectorHeads];
  bool corrects[kMaxSelectorHeads];
};

// Each of the low 16 bits twice.
__device__ __forceinline__ uint32_t Doubled(uint32_t x) {
  x &= 0xffff;
  x = (x | x << 8) & 0x00ff00ff;
  x = (x | x << 4) & 0x0f0f0f0f;
  x = (x | x << 2) & 0x33333333;
  x = (x | x << 1) & 0x55555555;
  return x | x << 1;
}

// Whether one of each pair of bits is set, in the low 16.
__device__ __forceinline__ uint32_t AnyOfPairs(uint32_t x) {
  x = (x | x >> 1) & 0x55555555;
  x = (x | x >> 1) & 0x33333333;
  x = (x | x >> 2) & 0x0f0f0f0f;
  x = (x | x >> 4) & 0x00ff00ff;
  return (x | x >> 8) & 0xffff;
}

// The query tile of a block of threads, and its bits in shared memory.
struct Cell {
  int head;
  int tile;
  int64_t index;
  int64_t s, e;
  int limit;       // relative tiles that start at key 0 or after
  int num_words;   // of them
  int before;      // blocks before s
  int mean_words;  // of blocks, bit 0 being the diagonal's

  __device__ explicit Cell(const Params& p) {
    tile = p.num_q_tiles - 1 - blockIdx.x / p.num_heads;
    head = blockIdx.x % p.num_heads;
    index = int64_t{head} * p.num_q_tiles + tile;
    s = p.first_tile_begin + int64_t{tile} * kTileRows;
    e = s + kTileRows;
    limit = static_cast<int>(e / kTileKeys);
    num_words = limit / 32 + 1;
    before = static_cast<int>(s / kMeanBlockKeys);
    mean_words = before / 32 + 1;
  }
};

__device__ __forceinline__ void UniteTiles(const Params& p, const Cell& cell,
                                           uint32_t* tiles) {
  const uint32_t* chosen = p.tile_bits + int64_t{cell.head} * p.choice_words;
  for (int w = threadIdx.x; w < cell.num_words; w += kThreads) {
    uint32_t bits = chosen[w];
    if (p.blocks != nullptr && w / 2 < p.block_words) {
      bits |=
          Doubled(p.blocks[cell.index * p.block_words + w / 2] >> (w % 2 * 16));
    }
    if (w == cell.limit / 32) bits &= (1u << (cell.limit % 32)) - 1;
    tiles[w] = bits;
  }
}

// Writes the cell's columns, each warp those of a stretch of the head's, and
// returns their number. With `touched` sets the bits of their blocks.
__device__ __forceinline__ int WriteColumns(const Params& p, const Cell& cell,
                                            const uint32_t* tiles,
                                            uint32_t* touched, int* counts) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int count = p.counts[cell.head];
  const int stretch = (count + kThreads - 1) / kThreads * 32;
  const int begin = min(warp * stretch, count);
  const int end = min(begin + stretch, count);
  const int32_t* verticals = p.verticals + cell.head * p.vertical_stride;
  // In no tile and before s.
  const auto is_kept = [&](int at, int32_t& column) {
    column = at < end ? verticals[at] : INT32_MAX;
    if (column >= cell.s) return false;
    const int r = static_cast<int>((cell.e - 1 - column) / kTileKeys);
    return (tiles[r / 32] >> (r % 32) & 1) == 0;
  };
  int kept = 0;
  int32_t column;
  for (int base = begin; base < end; base += 32) {
    kept += __popc(__ballot_sync(~0u, is_kept(base + lane, column)));
  }
  if (lane == 0) counts[warp] = kept;
  __syncthreads();
  int total = 0;
  int before = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) before = total;
    total += counts[w];
  }
  int32_t* out = p.columns + p.column_begin[cell.head] +
                 int64_t{cell.tile} * p.max_columns[cell.head] + before;
  for (int base = begin; kept > 0 && base < end; base += 32) {
    const bool keep = is_kept(base + lane, column);
    const uint32_t all = __ballot_sync(~0u, keep);
    if (keep) {
      out[__popc(all & ((1u << lane) - 1))] = column;
      if (touched != nullptr) {
        const int b = static_cast<int>((cell.e - 1 - column) / kMeanBlockKeys);
        atomicOr(&touched[b / 32], 1u << (b % 32));
      }
    }
    out += __popc(all);
  }
  return total;
}

// `dropped` holds the touched blocks and becomes the corrected ones. Returns
// their number.
__device__ __forceinline__ int WriteMeans(
    const Params& p, const Cell& cell, const uint32_t* tiles, uint32_t* dropped,
    bit_runs::Scan<kThreads>::TempStorage& scan) {
  for (int w = threadIdx.x; w < cell.mean_words; w += kThreads) {
    uint32_t kept = AnyOfPairs(tiles[2 * w]);
    if (2 * w + 1 < cell.num_words) kept |= AnyOfPairs(tiles[2 * w + 1]) << 16;
    kept |= dropped[w];
    uint32_t exists = w == 0 ? ~1u : ~0u;  // the diagonal's does not
    if (w == cell.before / 32)
      exists &= (uint64_t{2} << (cell.before % 32)) - 1;
    dropped[w] = ~kept & exists;
  }
  __syncthreads();
  // Ascending: the run next to the diagonal comes last, so count them first.
  int runs = 0;
  for (int w = threadIdx.x; w < cell.mean_words; w += kThreads) {
    const uint32_t before = w > 0 ? dropped[w - 1] >> 31 : 0;
    runs += __popc(dropped[w] & ~(dropped[w] << 1 | before));
  }
  uint64_t ignored;
  uint64_t total;
  bit_runs::Scan<kThreads>(scan).ExclusiveSum(static_cast<uint64_t>(runs),
                                              ignored, total);
  __syncthreads();
  runs = static_cast<int>(total);
  int2* const out = p.mean_blocks + cell.index * p.mean_stride;
  const bit_runs::Totals totals = bit_runs::Write<kThreads>(
      dropped, cell.mean_words, scan, [&](int j) { return out + runs - 1 - j; },
      [&](int first, int last) {
        return make_int2(cell.before - last, last - first + 1);
      },
      [](int, int) {});
  // The rest of what is read at once is empty.
  const int padded = (runs + kMeanUnit - 1) / kMeanUnit * kMeanUnit;
  for (int i = runs + threadIdx.x; i < padded; i += kThreads) {
    out[i] = make_int2(0, 0);
  }
  return totals.bits;
}

__global__ void __launch_bounds__(kThreads)
    HybridCellKernel(const __grid_constant__ Params p) {
  extern __shared__ uint32_t words[];
  __shared__ typename bit_runs::Scan<kThreads>::TempStorage scan;
  __shared__ int counts[kWarps];
  const Cell cell(p);
  uint32_t* const tiles = words;                     // [num_words]
  uint32_t* const touched = words + cell.num_words;  // [mean_words]
  const bool corrects = p.corrects[cell.head];

  UniteTiles(p, cell, tiles);
  if (corrects) {
    for (int w = threadIdx.x; w < cell.mean_words; w += kThreads) {
      touched[w] = 0;
    }
  }
  __syncthreads();
  int2* const ranges_end = p.ranges + (cell.index + 1) * p.range_stride;
  const bit_runs::Totals totals = bit_runs::Write<kThreads>(
      tiles, cell.num_words, scan, [&](int j) { return ranges_end - 1 - j; },
      [](int first, int last) {
        return make_int2(-(last + 1) * kTileKeys, last - first + 1);
      },
      [](int, int) {});
  const int num_columns =
      WriteColumns(p, cell, tiles, corrects ? touched : nullptr, counts);
  int num_means = 0;
  if (corrects) {
    __syncthreads();
    num_means = WriteMeans(p, cell, tiles, touched, scan);
  }

  if (threadIdx.x != 0) return;
  p.cells[cell.index] = {
      .range_end = (cell.index + 1) * p.range_stride,
      .column_begin = p.column_begin[cell.head] +
                      int64_t{cell.tile} * p.max_columns[cell.head],
      .num_tiles = totals.bits,
      .key_origin = static_cast<int32_t>(cell.e),
      .num_columns = num_columns,
      .num_means = num_means};
  work_order::Count(
      p.order, cell.head, cell.tile,
      static_cast<uint32_t>(CellCost(totals.bits, num_columns + num_means)));
  if (p.mean_stride > 0) {
    p.mean_offsets[cell.index] = cell.index * p.mean_stride;
    if (blockIdx.x == 0) {
      const int64_t cells = int64_t{p.num_heads} * p.num_q_tiles;
      p.mean_offsets[cells] = cells * p.mean_stride;
    }
  }
  if (p.pairs == nullptr) return;
  // The tiles of the diagonal are always there; those before s are seen in
  // whole by every row.
  const int64_t row_begin = max(cell.s, p.q_begin);
  const int64_t row_end = min(cell.e, p.q_end);
  atomicAdd(
      p.pairs,
      static_cast<unsigned long long>(
          (row_end - row_begin) *
              ((totals.bits - kTileRows / kTileKeys) * int64_t{kTileKeys} +
               num_columns + num_means) +
          CausalPairs(row_begin, row_end, cell.s, min(cell.e, p.kv_len))));
}

// Sets strides of `p` for rows whose last query tile ends at `end`.
void SetStrides(int64_t end, bool with_means, Params& p) {
  // A range has at least two tiles, but for one that is cut at key 0, and one
  // before the next.
  p.range_stride = end / kTileKeys / 3 + 1;
  const int64_t intervals = (end / kMeanBlockKeys + 1) / 2;
  p.mean_stride =
      with_means ? (intervals + kMeanUnit - 1) / kMeanUnit * kMeanUnit : 0;
}

// The parts of a plan in its scratch memory, set in `p`; their bytes.
// `num_columns` is the most of all heads' cells.
int64_t LayOut(int64_t num_cells, int64_t num_columns, void* scratch,
               Params& p) {
  ScratchLayout layout(scratch);
  layout.Take(num_cells, &p.cells);
  layout.Take(num_cells * p.range_stride, &p.ranges);
  layout.Take(num_columns, &p.columns);
  layout.Take(p.mean_stride > 0 ? num_cells + 1 : 0, &p.mean_offsets);
  layout.Take(num_cells * p.mean_stride, &p.mean_blocks);
  work_order::LayOut(num_cells, layout, p.order);
  return layout.bytes();
}

int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

int64_t HybridPlanBytes(int64_t q_len, int64_t kv_len,
                        absl::Span<const VerticalSlashSize> sizes,
                        bool with_means) {
  // Rows that start in the middle of a query tile reach into one more.
  const int64_t num_q_tiles = RoundUp(q_len, kTileRows) / kTileRows + 1;
  int64_t columns = 0;
  for (const VerticalSlashSize& size : sizes) {
    columns += Clamp(size, kv_len).vertical;
  }
  Params p;
  SetStrides(RoundUp(kv_len, kTileRows), with_means, p);
  return LayOut(static_cast<int64_t>(sizes.size()) * num_q_tiles,
                columns * num_q_tiles, nullptr, p);
}

int64_t HybridPlanRows(int64_t q_len, int64_t kv_len,
                       absl::Span<const VerticalSlashSize> sizes,
                       bool with_means) {
  int64_t rows = kTileRows;
  while (rows < q_len && HybridPlanBytes(2 * rows, kv_len, sizes, with_means) <=
                             kHybridPlanBytes) {
    rows *= 2;
  }
  return rows;
}

absl::StatusOr<DeviceTilePlan> LaunchHybridPlan(
    const VerticalSlashChoice& choice, const HybridPlanParams& params,
    void* scratch, int64_t scratch_bytes, void* stream) {
  OVERTURE_RETURN_IF_ERROR(Validate(PlanShape{.q_begin = params.q_begin,
                                              .q_len = params.q_len,
                                              .kv_len = choice.kv_len,
                                              .tile_rows = kTileRows,
                                              .tile_keys = kTileKeys}));
  if (static_cast<int64_t>(params.rules.size()) != choice.num_heads) {
    return absl::InvalidArgumentError(
        absl::StrCat("rules has ", params.rules.size(), " heads, the choice ",
                     choice.num_heads));
  }
  const int64_t q_end = params.q_begin + params.q_len;
  const int64_t first_tile = params.q_begin / kTileRows;
  const int64_t num_q_tiles =
      RoundUp(q_end, kTileRows) / kTileRows - first_tile;
  const int64_t end = (first_tile + num_q_tiles) * kTileRows;
  const int64_t num_items = choice.num_heads * num_q_tiles;
  if (num_items > std::numeric_limits<int32_t>::max()) {
    return absl::OutOfRangeError(
        absl::StrCat("plan has ", num_items, " work items, limit 2^31 - 1"));
  }
  const int64_t num_blocks = (q_end - 1) / kMeanBlockKeys;
  Params p{.kv_len = choice.kv_len,
           .num_heads = choice.num_heads,
           .choice_words = choice.num_words,
           .verticals = choice.verticals,
           .vertical_stride = choice.vertical_stride,
           .counts = choice.counts,
           .tile_bits = choice.tile_bits,
           .blocks = params.blocks,
           .block_words = static_cast<int32_t>(BlockWords(num_blocks)),
           .num_q_tiles = static_cast<int32_t>(num_q_tiles),
           .q_begin = params.q_begin,
           .q_end = q_end,
           .first_tile_begin = first_tile * kTileRows,
           .pairs = reinterpret_cast<unsigned long long*>(params.pairs)};
  bool with_means = false;
  int64_t num_columns = 0;
  for (int32_t head = 0; head < choice.num_heads; ++head) {
    p.corrects[head] = params.rules[head].correct_means;
    with_means = with_means || p.corrects[head];
    p.max_columns[head] = choice.max_columns[head];
    p.column_begin[head] = num_columns;
    num_columns += num_q_tiles * choice.max_columns[head];
  }
  SetStrides(end, with_means, p);
  const int64_t bytes = LayOut(num_items, num_columns, scratch, p);
  if (bytes > scratch_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "hybrid plan: scratch of ", scratch_bytes, " bytes, needs ", bytes));
  }

  p.order.num_heads = p.num_heads;
  p.order.num_q_tiles = p.num_q_tiles;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  OVERTURE_RETURN_IF_ERROR(work_order::Begin(p.order, cuda_stream));
  const int64_t words =
      end / kTileKeys / 32 + 1 + end / kMeanBlockKeys / 32 + 1;
  const int64_t shared_bytes = words * static_cast<int64_t>(sizeof(uint32_t));
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
      HybridCellKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
      static_cast<int>(shared_bytes)));
  HybridCellKernel<<<static_cast<unsigned>(num_items), kThreads, shared_bytes,
                     cuda_stream>>>(p);
  OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("HybridCellKernel"));
  OVERTURE_RETURN_IF_ERROR(work_order::Finish(p.order, cuda_stream));

  return DeviceTilePlan{
      .q_begin = params.q_begin,
      .q_len = params.q_len,
      .kv_len = choice.kv_len,
      .num_lists = choice.num_heads,
      .num_q_tiles = p.num_q_tiles,
      .cells = p.cells,
      .ranges = reinterpret_cast<const KeyRange*>(p.ranges),
      .columns = p.columns,
      .mean_offsets = with_means ? p.mean_offsets : nullptr,
      .mean_blocks = with_means
                         ? reinterpret_cast<const BlockInterval*>(p.mean_blocks)
                         : nullptr,
      .order = p.order.ids,
      .next_item = p.order.next_item};
}

}  // namespace overture::kernels
