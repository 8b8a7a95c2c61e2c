#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/selectors/bit_runs.cuh"
#include "kernels/selectors/scratch_layout.h"
#include "kernels/selectors/select_mass.cuh"
#include "kernels/selectors/select_top.cuh"
#include "kernels/selectors/vertical_slash_gpu.h"

namespace overture::kernels {
namespace {

constexpr int kTileRows = kGpuTileRows;
constexpr int kTileKeys = kGpuTileKeys;
static_assert(kTileRows % kTileKeys == 0, "relative tiles are shared");
constexpr int kListThreads = 1024;  // of the block that makes a head's list

// Of what a head keeps.
struct Pick {
  int32_t count;  // at most, if there is a mass
  int32_t forced;
};

// What every kernel of a launch knows.
struct Params {
  int64_t kv_len;
  int32_t num_heads;
  int32_t num_tiles;            // relative tiles of the last query tile
  int32_t num_words;            // of 32 relative tiles, and one more bit
  const float* column_sums;     // [num_heads, kv_len]
  const float* diagonal_sums;   // [num_heads, kv_len]
  select_top::Scratch* select;  // [2 * num_heads]
  int32_t* counts;              // [2 * num_heads]
  unsigned long long* weights;  // [2 * num_heads], of all scores
  int32_t* verticals;           // [num_heads, vertical_stride]
  int32_t* slashes;             // [num_heads, slash_stride]
  int64_t vertical_stride;
  int64_t slash_stride;
  uint32_t* bits;    // [num_heads, num_words], the tiles of a head's list
  int32_t* ranks;    // [num_heads, num_words], tiles in the words before
  KeyRange* ranges;  // [num_heads, range_stride], at the end of each
  int64_t range_stride;
  Pick vertical[kMaxSelectorHeads];
  Pick slash[kMaxSelectorHeads];
  float mass[kMaxSelectorHeads];
};

// Lists are the columns of every head and then its distances.
__device__ __forceinline__ Pick PickOf(const Params& p, int list) {
  return list < p.num_heads ? p.vertical[list] : p.slash[list - p.num_heads];
}

__device__ __forceinline__ select_mass::Choice ChoiceOf(const Params& p,
                                                        int list) {
  const Pick pick = PickOf(p, list);
  const int head = list % p.num_heads;
  const bool is_column = list < p.num_heads;
  return {
      .scores = (is_column ? p.column_sums : p.diagonal_sums) + head * p.kv_len,
      .out = is_column ? p.verticals + head * p.vertical_stride
                       : p.slashes + head * p.slash_stride,
      .count = pick.count,
      .forced = pick.forced};
}

// All scores of a list but the forced ones.
__device__ __forceinline__ select_top::List ScoresOf(const Params& p,
                                                     int list) {
  const select_mass::Choice choice = ChoiceOf(p, list);
  return {.scores = choice.scores,
          .begin = choice.forced,
          .end = static_cast<int32_t>(p.kv_len),
          .wanted = choice.count - choice.forced,
          .out = choice.out + choice.forced};
}

// Eight blocks per list in the kernels that follow.
__device__ __forceinline__ int ListOfBlock() {
  return blockIdx.x / select_top::kBlocks;
}
__device__ __forceinline__ int BlockOfList() {
  return blockIdx.x % select_top::kBlocks;
}

// One round of the select; the first also writes what is forced.
template <int kRound>
__global__ void __launch_bounds__(select_top::kThreads, 3)
    SelectKernel(const __grid_constant__ Params p) {
  __shared__ select_top::Shared shared;
  const int list = ListOfBlock();
  const int block = BlockOfList();
  const Pick pick = PickOf(p, list);
  const select_top::List scores = ScoresOf(p, list);
  if (kRound == 0 && block == 0) {
    int32_t* forced = scores.out - pick.forced;
    for (int i = threadIdx.x; i < pick.forced; i += select_top::kThreads) {
      forced[i] = i;
    }
    if (threadIdx.x == 0) {
      p.counts[list] = pick.count;
      p.weights[list] = 0;
    }
  }
  select_top::Run<kRound>(scores, block, p.select[list], shared);
}

// What all scores of every list weigh.
__global__ void __launch_bounds__(select_top::kThreads)
    WeighKernel(const __grid_constant__ Params p) {
  const int list = ListOfBlock();
  if (p.mass[list % p.num_heads] <= 0) return;
  select_top::List all = ScoresOf(p, list);
  all.begin = 0;
  select_top::Weigh(all, BlockOfList(), &p.weights[list]);
}

// A block per list: how much of it a mass keeps.
__global__ void __launch_bounds__(select_mass::kThreads)
    MassKernel(const __grid_constant__ Params p) {
  __shared__ select_mass::Shared shared;
  const int list = blockIdx.x;
  const float mass = p.mass[list % p.num_heads];
  if (mass <= 0) return;
  const int32_t count =
      select_mass::Run(ChoiceOf(p, list), mass, p.weights[list], shared);
  if (threadIdx.x == 0) p.counts[list] = count;
}

// A block per head: its distances as relative tiles, and those as ranges.
__global__ void __launch_bounds__(kListThreads)
    ListKernel(const __grid_constant__ Params p) {
  __shared__ typename bit_runs::Scan<kListThreads>::TempStorage scan;
  const int head = blockIdx.x;
  const int thread = threadIdx.x;
  uint32_t* bits = p.bits + int64_t{head} * p.num_words;
  int32_t* ranks = p.ranks + int64_t{head} * p.num_words;
  auto* const ranges_end =
      reinterpret_cast<int2*>(p.ranges + (head + 1) * p.range_stride);

  for (int i = thread; i < p.num_words; i += kListThreads) bits[i] = 0;
  __syncthreads();
  // Distance D holds keys of tiles floor(D / 64) to floor((D + 127) / 64).
  const int32_t* slashes = p.slashes + head * p.slash_stride;
  const int32_t count = p.counts[p.num_heads + head];
  const auto first_tile = [](int32_t d) { return d / kTileKeys; };
  const auto last_tile = [](int32_t d) {
    return static_cast<int32_t>((int64_t{d} + kTileRows - 1) / kTileKeys);
  };
  for (int i = thread; i < count; i += kListThreads) {
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

  bit_runs::Write<kListThreads>(
      bits, p.num_words, scan, [&](int j) { return ranges_end - 1 - j; },
      [](int first, int last) {
        return make_int2(-(last + 1) * kTileKeys, last - first + 1);
      },
      [&](int word, int before) { ranks[word] = before; });
}

// Sizes after Clamp, summed up.
struct Extent {
  int64_t num_heads;
  int64_t num_tiles;  // relative, of the last query tile
  int64_t vertical_stride = 0;
  int64_t slash_stride = 0;

  int64_t num_words() const { return num_tiles / 32 + 1; }
  // A range has at least two tiles and one before the next.
  int64_t range_stride() const { return num_tiles / 3 + 1; }
};

Extent ExtentOf(int64_t kv_len, absl::Span<const VerticalSlashSize> sizes) {
  const int64_t end = (kv_len + kTileRows - 1) / kTileRows * kTileRows;
  Extent extent{.num_heads = static_cast<int64_t>(sizes.size()),
                .num_tiles = end / kTileKeys};
  for (const VerticalSlashSize& size : sizes) {
    const VerticalSlashSize clamped = Clamp(size, kv_len);
    extent.vertical_stride =
        std::max<int64_t>(extent.vertical_stride, clamped.vertical);
    extent.slash_stride = std::max<int64_t>(extent.slash_stride, clamped.slash);
  }
  return extent;
}

// The parts of a choice in its scratch memory, set in `p`; their bytes.
int64_t LayOut(const Extent& extent, void* scratch, Params& p) {
  ScratchLayout layout(scratch);
  const int64_t heads = extent.num_heads;
  layout.Take(2 * heads, &p.select);
  layout.Take(2 * heads, &p.counts);
  layout.Take(2 * heads, &p.weights);
  layout.Take(heads * extent.vertical_stride, &p.verticals);
  layout.Take(heads * extent.slash_stride, &p.slashes);
  layout.Take(heads * extent.num_words(), &p.bits);
  layout.Take(heads * extent.num_words(), &p.ranks);
  layout.Take(heads * extent.range_stride(), &p.ranges);
  return layout.bytes();
}

}  // namespace

int64_t VerticalSlashChoiceBytes(int64_t kv_len,
                                 absl::Span<const VerticalSlashSize> sizes) {
  Params p;
  return LayOut(ExtentOf(kv_len, sizes), nullptr, p);
}

absl::StatusOr<VerticalSlashChoice> LaunchVerticalSlashChoice(
    const VerticalSlashChoiceParams& params, void* scratch,
    int64_t scratch_bytes, void* stream) {
  OVERTURE_RETURN_IF_ERROR(Validate(PlanShape{.q_len = params.kv_len,
                                              .kv_len = params.kv_len,
                                              .tile_rows = kTileRows,
                                              .tile_keys = kTileKeys}));
  if (params.kv_len > select_top::kMaxScores) {
    return absl::InvalidArgumentError(absl::StrCat("kv_len is ", params.kv_len,
                                                   ", must be 1 .. ",
                                                   select_top::kMaxScores));
  }
  const int64_t num_heads = static_cast<int64_t>(params.sizes.size());
  if (num_heads < 1 || num_heads > kMaxSelectorHeads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sizes has ", num_heads, " heads, must be 1 .. ", kMaxSelectorHeads));
  }
  const Extent extent = ExtentOf(params.kv_len, params.sizes);
  Params p{.kv_len = params.kv_len,
           .num_heads = static_cast<int32_t>(num_heads),
           .num_tiles = static_cast<int32_t>(extent.num_tiles),
           .num_words = static_cast<int32_t>(extent.num_words()),
           .column_sums = params.column_sums,
           .diagonal_sums = params.diagonal_sums,
           .vertical_stride = extent.vertical_stride,
           .slash_stride = extent.slash_stride,
           .range_stride = extent.range_stride()};
  const int64_t bytes = LayOut(extent, scratch, p);
  if (bytes > scratch_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("vertical-slash choice: scratch of ", scratch_bytes,
                     " bytes, needs ", bytes));
  }
  std::vector<int32_t> max_columns(num_heads);
  for (int64_t head = 0; head < num_heads; ++head) {
    const VerticalSlashSize size = Clamp(params.sizes[head], params.kv_len);
    p.vertical[head] = {size.vertical,
                        std::min(size.vertical, size.forced_columns)};
    p.slash[head] = {size.slash, std::min(size.slash, size.forced_distances)};
    p.mass[head] = size.mass;
    max_columns[head] = size.vertical;
  }

  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const unsigned heads = static_cast<unsigned>(num_heads);
  const auto launch = [&](const char* name, void (*kernel)(Params)) {
    kernel<<<2 * heads * select_top::kBlocks, select_top::kThreads, 0,
             cuda_stream>>>(p);
    return CudaLaunchStatus(name);
  };
  static_assert(select_top::kRounds == 4);
  for (void (*round)(Params) :
       {SelectKernel<0>, SelectKernel<1>, SelectKernel<2>, SelectKernel<3>}) {
    OVERTURE_RETURN_IF_ERROR(launch("vertical-slash SelectKernel", round));
  }
  if (std::any_of(
          params.sizes.begin(), params.sizes.end(),
          [](const VerticalSlashSize& size) { return size.mass > 0; })) {
    OVERTURE_RETURN_IF_ERROR(launch("vertical-slash WeighKernel", WeighKernel));
    MassKernel<<<2 * heads, select_mass::kThreads, 0, cuda_stream>>>(p);
    OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("vertical-slash MassKernel"));
  }
  ListKernel<<<heads, kListThreads, 0, cuda_stream>>>(p);
  OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("vertical-slash ListKernel"));

  return VerticalSlashChoice{.kv_len = params.kv_len,
                             .num_heads = p.num_heads,
                             .verticals = p.verticals,
                             .slashes = p.slashes,
                             .vertical_stride = extent.vertical_stride,
                             .slash_stride = extent.slash_stride,
                             .counts = p.counts,
                             .num_words = p.num_words,
                             .tile_bits = p.bits,
                             .tile_ranks = p.ranks,
                             .ranges = p.ranges,
                             .range_stride = extent.range_stride(),
                             .max_columns = std::move(max_columns)};
}

}  // namespace overture::kernels
