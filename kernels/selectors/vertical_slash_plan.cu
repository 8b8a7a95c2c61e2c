#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/causal_pairs.h"
#include "kernels/selectors/scratch_layout.h"
#include "kernels/selectors/vertical_slash_gpu.h"
#include "kernels/selectors/work_order.cuh"

namespace overture::kernels {
namespace {

constexpr int kTileRows = kGpuTileRows;
constexpr int kTileKeys = kGpuTileKeys;
constexpr int kCellThreads = 256;  // a warp per cell
constexpr int kCellWarps = kCellThreads / 32;
constexpr int kColumnSteps = 4;  // of 32 columns, whose loads overlap

// What the kernel of the cells knows. The first part is the choice's.
struct Params {
  int64_t kv_len;
  int32_t num_heads;
  int32_t num_words;
  const int32_t* verticals;
  int64_t vertical_stride;
  const int32_t* counts;
  const uint32_t* bits;
  const int32_t* ranks;
  int64_t range_stride;
  int64_t q_begin;
  int64_t q_end;
  int64_t first_tile_begin;  // of query tile 0
  int32_t num_q_tiles;
  PlanCell* cells;            // [num_heads, num_q_tiles]
  int32_t* columns;           // of cell (h, t) from (column_begin[h] + t * max)
  unsigned long long* pairs;  // may be null
  work_order::Params order;
  int32_t max_columns[kMaxSelectorHeads];
  int64_t column_begin[kMaxSelectorHeads];
};

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
    const int32_t count = p.counts[head];

    // Relative tiles that start at key 0 or after.
    const int limit = static_cast<int>(e / kTileKeys);
    const int32_t num_tiles =
        p.ranks[int64_t{head} * p.num_words + limit / 32] +
        __popc(bits[limit / 32] & ((1u << (limit % 32)) - 1));

    // Columns before s that lie in none of the tiles.
    const int64_t column_begin =
        p.column_begin[head] + int64_t{tile} * p.max_columns[head];
    int32_t* out = p.columns + column_begin;
    const int32_t* verticals = p.verticals + head * p.vertical_stride;
    int32_t num_columns = 0;
    bool more = true;
    for (int base = 0; more && base < count; base += 32 * kColumnSteps) {
      int32_t column[kColumnSteps];
      bool keep[kColumnSteps];
#pragma unroll
      for (int i = 0; i < kColumnSteps; ++i) {
        const int at = base + i * 32 + lane;
        column[i] = at < count ? verticals[at] : INT32_MAX;
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
      work_order::Count(
          p.order, head, tile,
          static_cast<uint32_t>(CellCost(num_tiles, num_columns)));
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

// The parts of a plan in its scratch memory, set in `p`; their bytes.
// `num_columns` is the most of all heads' cells.
int64_t LayOut(int64_t num_cells, int64_t num_columns, void* scratch,
               Params& p) {
  ScratchLayout layout(scratch);
  layout.Take(num_cells, &p.cells);
  layout.Take(num_columns, &p.columns);
  work_order::LayOut(num_cells, layout, p.order);
  return layout.bytes();
}

}  // namespace

int64_t VerticalSlashPlanBytes(int64_t q_len, int64_t kv_len,
                               absl::Span<const VerticalSlashSize> sizes) {
  // Rows that start in the middle of a query tile reach into one more.
  const int64_t num_q_tiles = (q_len + kTileRows - 1) / kTileRows + 1;
  int64_t columns = 0;
  for (const VerticalSlashSize& size : sizes) {
    columns += Clamp(size, kv_len).vertical;
  }
  Params p;
  return LayOut(static_cast<int64_t>(sizes.size()) * num_q_tiles,
                columns * num_q_tiles, nullptr, p);
}

absl::StatusOr<DeviceTilePlan> LaunchVerticalSlashPlan(
    const VerticalSlashChoice& choice, const VerticalSlashPlanParams& params,
    void* scratch, int64_t scratch_bytes, void* stream) {
  OVERTURE_RETURN_IF_ERROR(Validate(PlanShape{.q_begin = params.q_begin,
                                              .q_len = params.q_len,
                                              .kv_len = choice.kv_len,
                                              .tile_rows = kTileRows,
                                              .tile_keys = kTileKeys}));
  const int64_t q_end = params.q_begin + params.q_len;
  const int64_t first_tile = params.q_begin / kTileRows;
  const int64_t num_q_tiles = (q_end + kTileRows - 1) / kTileRows - first_tile;
  const int64_t num_items = choice.num_heads * num_q_tiles;
  if (num_items > std::numeric_limits<int32_t>::max()) {
    return absl::OutOfRangeError(
        absl::StrCat("plan has ", num_items, " work items, limit 2^31 - 1"));
  }
  Params p{.kv_len = choice.kv_len,
           .num_heads = choice.num_heads,
           .num_words = choice.num_words,
           .verticals = choice.verticals,
           .vertical_stride = choice.vertical_stride,
           .counts = choice.counts,
           .bits = choice.tile_bits,
           .ranks = choice.tile_ranks,
           .range_stride = choice.range_stride,
           .q_begin = params.q_begin,
           .q_end = q_end,
           .first_tile_begin = first_tile * kTileRows,
           .num_q_tiles = static_cast<int32_t>(num_q_tiles),
           .pairs = reinterpret_cast<unsigned long long*>(params.pairs)};
  int64_t num_columns = 0;
  for (int32_t head = 0; head < choice.num_heads; ++head) {
    p.max_columns[head] = choice.max_columns[head];
    p.column_begin[head] = num_columns;
    num_columns += num_q_tiles * choice.max_columns[head];
  }
  const int64_t bytes = LayOut(num_items, num_columns, scratch, p);
  if (bytes > scratch_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("vertical-slash plan: scratch of ", scratch_bytes,
                     " bytes, needs ", bytes));
  }

  p.order.num_heads = p.num_heads;
  p.order.num_q_tiles = p.num_q_tiles;

  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  OVERTURE_RETURN_IF_ERROR(work_order::Begin(p.order, cuda_stream));
  CellKernel<<<(num_items + kCellWarps - 1) / kCellWarps, kCellThreads, 0,
               cuda_stream>>>(p);
  OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("vertical-slash CellKernel"));
  OVERTURE_RETURN_IF_ERROR(work_order::Finish(p.order, cuda_stream));

  return DeviceTilePlan{.q_begin = params.q_begin,
                        .q_len = params.q_len,
                        .kv_len = choice.kv_len,
                        .num_lists = choice.num_heads,
                        .num_q_tiles = p.num_q_tiles,
                        .cells = p.cells,
                        .ranges = choice.ranges,
                        .columns = p.columns,
                        .order = p.order.ids,
                        .next_item = p.order.next_item};
}

}  // namespace overture::kernels
