// Block scores on Hopper: a block of threads per query tile of a head.
//
// Its rows stay in shared memory; means come by TMA, 64 at a time, to each of
// two warpgroups, which computes their products with all 128 rows by wgmma
// (means as rows of the accumulator: a score is a sum along a row, most of it
// within a thread), and then chooses. Scores never leave shared memory. Two
// blocks share a multiprocessor, so that one's products run beside the other's
// exponentials and choice.
//
// Budget of 64 means and 128 rows at head dim 128: 2.1 MFLOP, 512 cycles of the
// tensor cores; 8,192 exponentials, 512 cycles of the special-function units;
// about 300 instructions a warp, 300 cycles of issue. Measured: 1,700 cycles,
// with means copied by cp.async, 370 instructions a warp more, as many.
//
// Source: FlashPrefill V2, arXiv 2608.19758.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/tensor_map.h"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/selectors/block_scores_gpu.h"
#include "kernels/selectors/take_best.cuh"

namespace overture::kernels {
namespace {

constexpr int kThreads = take_best::kThreads;
constexpr int kGroups = kThreads / 128;  // warpgroups
constexpr int kRows = kBlockTileRows;
constexpr int kChunk = 64;  // means of a product
constexpr int kPanel = 64;  // bf16 columns of a swizzled panel
constexpr int kLine = 128;  // bytes of a row of a panel
constexpr int kStages = 2;  // of a warpgroup
constexpr int kMaxHeads = 128;
constexpr int64_t kMaxKeys = int64_t{1} << 24;
constexpr int kUnit = kBlocksPerSuperBlock;
static_assert(kChunk % kUnit == 0);

struct HeadRule {
  float log2_threshold;
  int32_t count;  // 0: off
  bool has_threshold;
  bool is_on;
};

struct Params {
  CUtensorMap q;       // [num_heads, q_len, head_dim]
  CUtensorMap means;   // [KV heads, num_blocks, head_dim]
  CUtensorMap supers;  // [KV heads, whole super-blocks, head_dim]
  int32_t num_heads;
  int32_t group;
  float scale_log2;
  int32_t q_begin;
  int32_t q_end;
  int32_t first_tile;  // tile 0, in tiles from position 0
  int32_t num_q_tiles;
  int32_t num_blocks;
  int32_t num_words;
  int32_t num_scores;  // room for, in shared memory
  uint32_t* bits;
  float* scores;  // may be null
  HeadRule rules[kMaxHeads];
};

// What the threads of a block share beside the panels.
struct Control {
  uint64_t q_full;
  uint64_t full[kGroups][kStages];
  take_best::Shared best;
  float tops[take_best::kWarps];
  int32_t supers[kMaxScoredSuperBlocks + 1];  // whose blocks are scored
};

// Shared memory, all of it dynamic: panels are 1,024-byte aligned.
template <int kSteps>
struct Layout {
  static constexpr int kPanels = (kSteps + 3) / 4;
  static constexpr int kQuery = kPanels * kRows * kLine;
  static constexpr int kStage = kPanels * kChunk * kLine;
  static constexpr int kControl = kQuery + kGroups * kStages * kStage;
  static constexpr int kScores = kControl + sizeof(Control);

  static int64_t Bytes(const Params& p) {
    return kScores + (int64_t{p.num_scores} + p.num_words) * 4;
  }
};

// Where a warpgroup's stages stand: the next one, and the parity of its phase.
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The tile of one block of threads.
struct Tile {
  int head;
  int64_t cell;
  int before;     // blocks before it
  int row_begin;  // that exist, of its 128
  int row_end;

  __device__ explicit Tile(const Params& p) {
    // Last tiles first: they have most to score.
    head = blockIdx.x % p.num_heads;
    const int tile = p.num_q_tiles - 1 - blockIdx.x / p.num_heads;
    cell = int64_t{head} * p.num_q_tiles + tile;
    before = p.first_tile + tile;
    row_begin = max(p.q_begin - before * kRows, 0);
    row_end = min(p.q_end - before * kRows, kRows);
  }
};

// Scores of `count` means, of all threads: slot i is row i of the tensor, or
// with a list row i % kUnit of the unit that list[i / kUnit] names.
template <int kSteps>
__device__ __forceinline__ void Score(const Params& p, const Tile& tile,
                                      uint8_t* raw, const CUtensorMap& means,
                                      const int32_t* list, int count,
                                      Ring& ring, float* scores) {
  using L = Layout<kSteps>;
  auto& control = *reinterpret_cast<Control*>(raw + L::kControl);
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  const int warp = threadIdx.x % 128 / 32;
  const int lane = threadIdx.x % 32;
  const bool is_leader = threadIdx.x % 128 == 0;
  const bool ragged = tile.row_end - tile.row_begin < kRows;
  uint8_t* const stages = raw + L::kQuery + group * kStages * L::kStage;
  const int num_units = (count + kUnit - 1) / kUnit;
  constexpr int kChunkUnits = kChunk / kUnit;
  // Rows of a unit that do not exist, or are no candidates, and units beyond
  // the last leave what nobody reads.
  const auto fill = [&](int chunk, int stage) {
    const int first = chunk * kChunkUnits;
    const int units = min(num_units - first, kChunkUnits);
    if (units <= 0) return;
    uint64_t* full = &control.full[group][stage];
    ptx::BarrierArriveExpect(full, units * L::kPanels * kUnit * kLine);
#pragma unroll 1
    for (int u = 0; u < units; ++u) {
      const int unit = list == nullptr ? first + u : list[first + u];
      for (int panel = 0; panel < L::kPanels; ++panel) {
        ptx::TmaLoad3d(&means,
                       stages + stage * L::kStage + panel * kChunk * kLine +
                           u * kUnit * kLine,
                       full, panel * kPanel, unit * kUnit, tile.head / p.group,
                       ptx::kEvictLast);
      }
    }
  };

  if (is_leader) {
    for (int i = 0; i < kStages; ++i) {
      fill(group + i * kGroups, (ring.stage + i) % kStages);
    }
  }
  for (int chunk = group; chunk * kChunkUnits < num_units; chunk += kGroups) {
    ptx::BarrierWait(&control.full[group][ring.stage], ring.parity);
    const uint8_t* stage = stages + ring.stage * L::kStage;
    float d[64];  // [64 means, 128 rows]
    ptx::FenceRegisters(d);
    ptx::WgmmaFence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int panel = step / 4;
      const uint32_t offset = step % 4 * 32;
      ptx::WgmmaSharedShared(
          d,
          ptx::Advance(ptx::KMajorDescriptor(stage + panel * kChunk * kLine),
                       offset),
          ptx::Advance(ptx::KMajorDescriptor(raw + panel * kRows * kLine),
                       offset),
          step == 0);
    }
    ptx::WgmmaCommit();
    ptx::WgmmaWait<0>();
    ptx::FenceRegisters(d);
    // All warps are done with the stage.
    if (group == 0) {
      ptx::NamedBarrierSync(1, 128);
    } else {
      ptx::NamedBarrierSync(2, 128);
    }
    if (is_leader) fill(chunk + kStages * kGroups, ring.stage);
    ring.Next();

    if (ragged) {
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (row < tile.row_begin || row >= tile.row_end) d[i] = -INFINITY;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = -INFINITY;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        top = fmaxf(top, d[i / 2 * 4 + half * 2 + i % 2]);
      }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      // Finite: no inf - inf.
      top = fmaxf(top * p.scale_log2, -1e30f);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        sum += ptx::Exp2(
            fmaf(d[i / 2 * 4 + half * 2 + i % 2], p.scale_log2, -top));
      }
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int slot = chunk * kChunk + warp * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && slot < count) scores[slot] = top + __log2f(sum);
    }
  }
  __syncthreads();
}

// Largest of the scores; NaN counts as none.
__device__ __forceinline__ float Largest(const float* scores, int count,
                                         Control& control) {
  float top = -INFINITY;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    top = fmaxf(top, scores[i]);
  }
  for (int step = 16; step > 0; step /= 2) {
    top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
  }
  if (threadIdx.x % 32 == 0) control.tops[threadIdx.x / 32] = top;
  __syncthreads();
  for (const float other : control.tops) top = fmaxf(top, other);
  return top;
}

template <int kSteps>
__global__ void __launch_bounds__(kThreads, 2)
    BlockScoresKernel(const __grid_constant__ Params p) {
  using L = Layout<kSteps>;
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& control = *reinterpret_cast<Control*>(raw + L::kControl);
  auto* scores = reinterpret_cast<float*>(raw + L::kScores);
  auto* bits = reinterpret_cast<uint32_t*>(scores + p.num_scores);
  const Tile tile(p);
  const HeadRule rule = p.rules[tile.head];
  uint32_t* const out = p.bits + tile.cell * p.num_words;
  if (!rule.is_on || tile.before == 0) {
    for (int i = threadIdx.x; i < p.num_words; i += kThreads) out[i] = 0;
    return;
  }

  if (threadIdx.x == 0) {
    ptx::BarrierInit(&control.q_full, 1);
    for (auto& stages : control.full) {
      for (uint64_t& full : stages) ptx::BarrierInit(&full, 1);
    }
    ptx::FenceBarrierInit();
    ptx::BarrierArriveExpect(&control.q_full, L::kQuery);
    for (int panel = 0; panel < L::kPanels; ++panel) {
      // Rows before the first one and after the last become zeros.
      ptx::TmaLoad3d(&p.q, raw + panel * kRows * kLine, &control.q_full,
                     panel * kPanel, tile.before * kRows - p.q_begin, tile.head,
                     ptx::kEvictFirst);
    }
  }
  for (int i = threadIdx.x; i < p.num_words; i += kThreads) bits[i] = 0;
  __syncthreads();
  ptx::BarrierWait(&control.q_full, 0);

  // Which super-blocks' blocks are scored.
  Ring ring;
  const int num_supers = tile.before / kUnit;
  const int32_t* list = nullptr;
  int count = tile.before;
  if (num_supers > kMaxScoredSuperBlocks) {
    Score<kSteps>(p, tile, raw, p.supers, nullptr, num_supers, ring, scores);
    const take_best::Cut cut = take_best::FindCut(
        scores, num_supers, kMaxScoredSuperBlocks, control.best);
    take_best::ForEachTaken(
        scores, num_supers, cut, control.best,
        [&](int super, int rank) { control.supers[rank] = super; });
    // Those after the last whole super-block.
    if (threadIdx.x == 0) control.supers[kMaxScoredSuperBlocks] = num_supers;
    __syncthreads();
    list = control.supers;
    count = kMaxScoredSuperBlocks * kUnit + tile.before % kUnit;
  }

  Score<kSteps>(p, tile, raw, p.means, list, count, ring, scores);
  const auto block_of = [&](int slot) {
    return list == nullptr ? slot : list[slot / kUnit] * kUnit + slot % kUnit;
  };
  if (p.scores != nullptr) {
    float* to = p.scores + tile.cell * p.num_blocks;
    for (int i = threadIdx.x; i < count; i += kThreads) {
      to[block_of(i)] = scores[i];
    }
  }
  float least = 0;
  if (rule.has_threshold) {
    least = Largest(scores, count, control) + rule.log2_threshold;
  }
  take_best::Cut cut;
  if (rule.count > 0 && rule.count < count) {
    cut = take_best::FindCut(scores, count, rule.count, control.best);
  }
  take_best::ForEachTaken(scores, count, cut, control.best, [&](int slot, int) {
    if (rule.has_threshold && !(scores[slot] >= least)) return;
    const int bit = tile.before - block_of(slot);
    atomicOr(&bits[bit / 32], 1u << (bit % 32));
  });
  __syncthreads();
  for (int i = threadIdx.x; i < p.num_words; i += kThreads) out[i] = bits[i];
}

absl::Status Unimplemented(absl::string_view what, int64_t value,
                           absl::string_view limit) {
  return absl::UnimplementedError(absl::StrCat(
      "block scores on the GPU: ", what, " is ", value, ", must be ", limit));
}

absl::Status CheckGpu(const BlockScoreParams& params) {
  if (params.dtype != DType::kBF16) {
    return absl::UnimplementedError(absl::StrCat(
        "block scores on the GPU take bf16, got ", Name(params.dtype)));
  }
  if (params.q_begin + params.q_len > kMaxKeys) {
    return Unimplemented("q_begin + q_len", params.q_begin + params.q_len,
                         absl::StrCat("<= ", kMaxKeys));
  }
  for (const int64_t stride :
       {params.stride_q_row, params.stride_q_head, params.stride_mean_row,
        params.stride_mean_head, params.stride_super_row,
        params.stride_super_head}) {
    if (stride % 8 != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("block scores on the GPU: a stride is ", stride,
                       ", must be a multiple of 8 elements"));
    }
  }
  return SupportsBlockScores(params.num_q_heads, params.head_dim);
}

template <int kSteps>
absl::Status Launch(const Params& p, cudaStream_t stream) {
  const int64_t bytes = Layout<kSteps>::Bytes(p);
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
      BlockScoresKernel<kSteps>, cudaFuncAttributeMaxDynamicSharedMemorySize,
      static_cast<int>(bytes)));
  BlockScoresKernel<kSteps>
      <<<p.num_heads * p.num_q_tiles, kThreads, bytes, stream>>>(p);
  return CudaLaunchStatus("BlockScoresKernel");
}

}  // namespace

absl::Status SupportsBlockScores(int32_t num_q_heads, int32_t head_dim) {
  if (head_dim != 64 && head_dim != 96 && head_dim != 128) {
    return Unimplemented("head_dim", head_dim, "64, 96 or 128");
  }
  if (num_q_heads > kMaxHeads) {
    return Unimplemented("num_q_heads", num_q_heads,
                         absl::StrCat("<= ", kMaxHeads));
  }
  int device = 0, major = 0, minor = 0;
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaGetDevice(&device));
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(
      &major, cudaDevAttrComputeCapabilityMajor, device));
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(
      &minor, cudaDevAttrComputeCapabilityMinor, device));
  if (major == 9 && minor == 0) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("block scores take compute capability 9.0, the device has ",
                   major, ".", minor));
}

absl::Status LaunchBlockScores(const BlockScoreParams& params,
                               absl::Span<const BlockRule> rules,
                               uint32_t* bits, float* scores, void* stream) {
  OVERTURE_RETURN_IF_ERROR(CheckBlockScores(params, rules));
  OVERTURE_RETURN_IF_ERROR(CheckGpu(params));
  const auto num_blocks = static_cast<int32_t>(params.num_blocks());
  Params p = {.num_heads = params.num_q_heads,
              .group = params.num_q_heads / params.num_kv_heads,
              .scale_log2 = params.scale * static_cast<float>(M_LOG2E),
              .q_begin = static_cast<int32_t>(params.q_begin),
              .q_end = static_cast<int32_t>(params.q_begin + params.q_len),
              .first_tile = static_cast<int32_t>(params.first_tile_begin() /
                                                 kBlockTileRows),
              .num_q_tiles = static_cast<int32_t>(params.num_q_tiles()),
              .num_blocks = num_blocks,
              .num_words = static_cast<int32_t>(BlockWords(num_blocks)),
              .num_scores = std::max(std::min(num_blocks, kMaxScoredBlocks),
                                     num_blocks / kUnit),
              .bits = bits,
              .scores = scores};
  for (int32_t head = 0; head < params.num_q_heads; ++head) {
    const BlockRule& rule = rules[head];
    p.rules[head] = {.log2_threshold = std::log2(rule.threshold),
                     .count = rule.count,
                     .has_threshold = rule.threshold > 0,
                     .is_on = rule.IsOn()};
  }
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (num_blocks == 0) {
    return CudaStatus(
        cudaMemsetAsync(bits, 0, p.num_heads * p.num_words * sizeof(uint32_t),
                        cuda_stream),
        "clearing block bits");
  }
  const auto map = [&](const void* data, int64_t rows, int64_t stride_row,
                       int32_t box_rows, int64_t heads, int64_t stride_head,
                       CUtensorMap* to) {
    // With one head nothing depends on how far the next one is.
    return MakeTensorMap(data,
                         {{params.head_dim, 1, kPanel},
                          {rows, stride_row, box_rows},
                          {heads, heads > 1 ? stride_head : stride_row, 1}},
                         to);
  };
  OVERTURE_RETURN_IF_ERROR(map(params.q, params.q_len, params.stride_q_row,
                               kRows, params.num_q_heads, params.stride_q_head,
                               &p.q));
  OVERTURE_RETURN_IF_ERROR(
      map(params.k_means, num_blocks, params.stride_mean_row, kUnit,
          params.num_kv_heads, params.stride_mean_head, &p.means));
  if (num_blocks / kUnit > kMaxScoredSuperBlocks) {
    OVERTURE_RETURN_IF_ERROR(
        map(params.super_means, num_blocks / kUnit, params.stride_super_row,
            kUnit, params.num_kv_heads, params.stride_super_head, &p.supers));
  }
  const auto launch = params.head_dim == 64   ? &Launch<4>
                      : params.head_dim == 96 ? &Launch<6>
                                              : &Launch<8>;
  return launch(p, cuda_stream);
}

}  // namespace overture::kernels
