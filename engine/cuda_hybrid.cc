#include "engine/cuda_hybrid.h"

#include <algorithm>
#include <cmath>

#include "absl/types/span.h"
#include "base/status_macros.h"
#include "kernels/block_means/block_means.h"
#include "kernels/selectors/block_scores_gpu.h"
#include "kernels/selectors/hybrid_gpu.h"
#include "kernels/selectors/scratch_layout.h"

namespace overture::engine {
namespace {

constexpr int64_t kBlock = kernels::kMeanBlockKeys;
constexpr int64_t kSuper = kernels::kBlocksPerSuperBlock;

bool Scores(const kernels::VerticalSlashSize& size) {
  return size.blocks.IsOn();
}
bool Corrects(const kernels::VerticalSlashSize& size) {
  return size.blocks.correct_means;
}

bool Any(const std::vector<kernels::VerticalSlashSize>& sizes,
         bool (*property)(const kernels::VerticalSlashSize&)) {
  return std::any_of(sizes.begin(), sizes.end(), property);
}

}  // namespace

int64_t CudaHybrid::LayOut(const SelectorSpec& spec, const ModelConfig& config,
                           int64_t num_tokens, int64_t num_rows, void* device,
                           Buffers* buffers) {
  const bool corrects = AnyHead(spec, Corrects);
  if (!corrects && !AnyHead(spec, Scores)) return 0;
  int64_t rows = 0;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const std::vector<kernels::VerticalSlashSize> sizes =
        SizesOfLayer(spec, layer, config.num_q_heads);
    const bool with_means = Any(sizes, Corrects);
    if (!with_means && !Any(sizes, Scores)) continue;
    const int64_t layer_rows =
        kernels::HybridPlanRows(num_rows, num_tokens, sizes, with_means);
    rows = std::max(rows, layer_rows);
    buffers->plan_bytes = std::max(
        buffers->plan_bytes,
        kernels::HybridPlanBytes(layer_rows, num_tokens, sizes, with_means));
    if (spec.head_sizes.empty()) break;  // every layer's are these
  }
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  const int64_t blocks = num_tokens / kBlock;
  kernels::ScratchLayout layout(device);
  layout.Take(blocks * kv_size, &buffers->k_means);
  layout.Take(corrects ? blocks * kv_size : 0, &buffers->v_means);
  layout.Take(blocks / kSuper * kv_size, &buffers->super_means);
  layout.Take(
      config.num_q_heads * (rows / kBlock + 1) * kernels::BlockWords(blocks),
      &buffers->bits);
  layout.Take(buffers->plan_bytes, &buffers->plan);
  return layout.bytes();
}

int64_t CudaHybrid::BytesOf(const SelectorSpec& spec, const ModelConfig& config,
                            int64_t num_tokens, int64_t num_rows) {
  Buffers buffers;
  return LayOut(spec, config, num_tokens, num_rows, nullptr, &buffers);
}

CudaHybrid::CudaHybrid(const SelectorSpec& spec, const ModelConfig& config,
                       int64_t num_tokens, int64_t num_rows, void* device,
                       const Stream& stream)
    : spec_(spec),
      config_(config),
      num_tokens_(num_tokens),
      num_rows_(num_rows),
      stream_(stream) {
  LayOut(spec, config, num_tokens, num_rows, device, &buffers_);
}

int64_t CudaHybrid::stride_mean_head() const {
  return num_tokens_ / kBlock * config_.head_dim;
}

int64_t CudaHybrid::stride_super_head() const {
  return num_tokens_ / kBlock / kSuper * config_.head_dim;
}

absl::Status CudaHybrid::Choose(int32_t layer, const SegmentTensors& segment) {
  segment_ = segment;
  if (layer != layer_) {
    layer_ = layer;
    num_blocks_ = 0;
    const std::vector<kernels::VerticalSlashSize> sizes =
        SizesOfLayer(spec_, layer, config_.num_q_heads);
    scores_ = Any(sizes, Scores);
    corrects_ = Any(sizes, Corrects);
    rules_.clear();
    for (const auto& size : sizes) rules_.push_back(size.blocks);
    max_rows_ =
        kernels::HybridPlanRows(num_rows_, num_tokens_, sizes, corrects_);
  }
  if (!is_on()) return absl::OkStatus();
  const int64_t end = segment.end / kBlock;
  kernels::BlockMeansParams means = {
      .rows = segment.k,
      .means = buffers_.k_means,
      .stride_row = config_.head_dim,
      .stride_head = num_tokens_ * config_.head_dim,
      .stride_mean_row = config_.head_dim,
      .stride_mean_head = stride_mean_head(),
      .num_heads = config_.num_kv_heads,
      .head_dim = config_.head_dim,
      .block_begin = num_blocks_,
      .block_end = end};
  if (num_blocks_ == end) return absl::OkStatus();
  OVERTURE_RETURN_IF_ERROR(kernels::LaunchBlockMeans(means, stream_.get()));
  if (corrects_) {
    means.rows = segment.v;
    means.means = buffers_.v_means;
    OVERTURE_RETURN_IF_ERROR(kernels::LaunchBlockMeans(means, stream_.get()));
  }
  const int64_t first_super = num_blocks_ / kSuper;
  num_blocks_ = end;
  if (first_super == end / kSuper) return absl::OkStatus();
  return kernels::LaunchBlockMeans({.rows = buffers_.k_means,
                                    .means = buffers_.super_means,
                                    .stride_row = config_.head_dim,
                                    .stride_head = stride_mean_head(),
                                    .stride_mean_row = config_.head_dim,
                                    .stride_mean_head = stride_super_head(),
                                    .num_heads = config_.num_kv_heads,
                                    .head_dim = config_.head_dim,
                                    .block_rows = kSuper,
                                    .block_begin = first_super,
                                    .block_end = end / kSuper},
                                   stream_.get());
}

absl::StatusOr<kernels::DeviceTilePlan> CudaHybrid::PlanOf(
    const kernels::VerticalSlashChoice& choice, int64_t begin, int64_t end,
    uint64_t* pairs) {
  const int64_t q_row = int64_t{config_.num_q_heads} * config_.head_dim;
  if (scores_) {
    OVERTURE_RETURN_IF_ERROR(kernels::LaunchBlockScores(
        {.q = segment_.q +
              (begin - segment_.begin) * q_row * SizeOf(segment_.dtype),
         .k_means = buffers_.k_means,
         .super_means = buffers_.super_means,
         .stride_q_row = q_row,
         .stride_q_head = config_.head_dim,
         .stride_mean_row = config_.head_dim,
         .stride_mean_head = stride_mean_head(),
         .stride_super_row = config_.head_dim,
         .stride_super_head = stride_super_head(),
         .num_q_heads = config_.num_q_heads,
         .num_kv_heads = config_.num_kv_heads,
         .head_dim = config_.head_dim,
         .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
         .q_begin = begin,
         .q_len = end - begin},
        rules_, buffers_.bits, nullptr, stream_.get()));
  }
  return kernels::LaunchHybridPlan(choice,
                                   {.q_begin = begin,
                                    .q_len = end - begin,
                                    .blocks = scores_ ? buffers_.bits : nullptr,
                                    .rules = rules_,
                                    .pairs = pairs},
                                   buffers_.plan, buffers_.plan_bytes,
                                   stream_.get());
}

void CudaHybrid::SetMeans(kernels::SparseAttentionParams* params) const {
  params->k_means = buffers_.k_means;
  params->v_means = buffers_.v_means;
  params->stride_mean_row = config_.head_dim;
  params->stride_mean_head = stride_mean_head();
}

}  // namespace overture::engine
