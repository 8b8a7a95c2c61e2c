#include "engine/cpu_selector.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/types/span.h"
#include "base/status_macros.h"
#include "engine/backend.h"
#include "kernels/block_means/block_means_cpu.h"
#include "kernels/probe_attention/probe_attention_cpu.h"
#include "kernels/selectors/best_tiles.h"
#include "kernels/selectors/hybrid.h"

namespace overture::engine {
namespace {

bool Scores(const std::vector<kernels::BlockRule>& rules) {
  return std::any_of(rules.begin(), rules.end(),
                     [](const auto& rule) { return rule.IsOn(); });
}

bool Corrects(const std::vector<kernels::BlockRule>& rules) {
  return std::any_of(rules.begin(), rules.end(),
                     [](const auto& rule) { return rule.correct_means; });
}

}  // namespace

absl::Status CpuSelector::Supports(const SelectorSpec& spec) {
  if (spec.skip_threshold > 0) return NotYet("skip_threshold");
  return absl::OkStatus();
}

int64_t CpuSelector::WorkspaceBytes(const ModelConfig& config,
                                    int64_t num_tokens) {
  // Two probe sums (4 bytes) and a plan's key ranges (8 bytes for each of 64
  // query tiles, at most one per 64 keys) per query head, votes per KV head.
  // Blocks in their place have half the query tiles, a range and a corrected
  // block for at least 192 and 256 keys, and four fp32 means for 128.
  return num_tokens *
         (config.num_q_heads * 16 + config.num_kv_heads * 4 +
          config.num_kv_heads * config.head_dim * 16 / kernels::kMeanBlockKeys);
}

absl::Status CpuSelector::Choose(int32_t layer, const SegmentTensors& segment,
                                 WindowVotes* votes) {
  segment_ = segment;
  const bool is_new_layer = layer != layer_;
  layer_ = layer;
  if (spec_.kind != SelectorSpec::Kind::kDynamic) return absl::OkStatus();
  if (is_new_layer) {
    sizes_ = SizesOfLayer(spec_, layer, config_.num_q_heads);
    rules_.clear();
    for (const auto& size : sizes_) rules_.push_back(size.blocks);
    num_blocks_ = 0;
  }
  if (IsDenseSegment(spec_, segment.end)) return absl::OkStatus();
  OVERTURE_RETURN_IF_ERROR(AsInternal(ChooseIndices(votes)));
  return AsInternal(UpdateMeans());
}

absl::Status CpuSelector::ChooseIndices(WindowVotes* votes) {
  const int64_t kv_len = segment_.end;
  const int64_t num_rows =
      std::min<int64_t>(kernels::kProbeRows, segment_.end - segment_.begin);
  std::vector<float> columns(config_.num_q_heads * kv_len);
  std::vector<float> diagonals(columns.size());
  kernels::ProbeAttentionParams probe = ProbeOf(segment_, config_, num_rows);
  probe.column_sums = columns.data();
  probe.diagonal_sums = diagonals.data();
  if (votes != nullptr && votes->window <= num_rows) AddVotes(votes, &probe);
  const bool is_static =
      std::all_of(sizes_.begin(), sizes_.end(), kernels::IsStatic);
  if (!is_static || probe.window_votes != nullptr) {
    OVERTURE_RETURN_IF_ERROR(kernels::ProbeAttentionCpu(probe));
  }

  indices_.clear();
  for (int32_t head = 0; head < config_.num_q_heads; ++head) {
    indices_.push_back(kernels::SelectVerticalSlash(
        absl::MakeConstSpan(columns).subspan(head * kv_len, kv_len),
        absl::MakeConstSpan(diagonals).subspan(head * kv_len, kv_len),
        sizes_[head]));
  }
  return absl::OkStatus();
}

absl::Status CpuSelector::UpdateMeans() {
  const bool corrects = Corrects(rules_);
  if (!corrects && !Scores(rules_)) return absl::OkStatus();
  const int64_t dim = config_.head_dim;
  const int64_t all_blocks = segment_.num_tokens / kernels::kMeanBlockKeys;
  const int64_t all_supers = all_blocks / kernels::kBlocksPerSuperBlock;
  const int64_t end = segment_.end / kernels::kMeanBlockKeys;
  const int64_t block_bytes =
      config_.num_kv_heads * dim * SizeOf(segment_.dtype);
  k_means_.resize(all_blocks * block_bytes);
  super_means_.resize(all_supers * block_bytes);
  kernels::BlockMeansParams means = {.dtype = segment_.dtype,
                                     .rows = segment_.k,
                                     .means = k_means_.data(),
                                     .stride_row = dim,
                                     .stride_head = segment_.num_tokens * dim,
                                     .stride_mean_row = dim,
                                     .stride_mean_head = all_blocks * dim,
                                     .num_heads = config_.num_kv_heads,
                                     .head_dim = config_.head_dim,
                                     .block_begin = num_blocks_,
                                     .block_end = end};
  if (num_blocks_ < end) {
    OVERTURE_RETURN_IF_ERROR(kernels::BlockMeansCpu(means));
  }
  if (corrects && num_blocks_ < end) {
    v_means_.resize(all_blocks * block_bytes);
    means.rows = segment_.v;
    means.means = v_means_.data();
    OVERTURE_RETURN_IF_ERROR(kernels::BlockMeansCpu(means));
  }
  const int64_t super_begin = num_blocks_ / kernels::kBlocksPerSuperBlock;
  const int64_t super_end = end / kernels::kBlocksPerSuperBlock;
  num_blocks_ = end;
  if (super_begin == super_end) return absl::OkStatus();
  return kernels::BlockMeansCpu({.dtype = segment_.dtype,
                                 .rows = k_means_.data(),
                                 .means = super_means_.data(),
                                 .stride_row = dim,
                                 .stride_head = all_blocks * dim,
                                 .stride_mean_row = dim,
                                 .stride_mean_head = all_supers * dim,
                                 .num_heads = config_.num_kv_heads,
                                 .head_dim = config_.head_dim,
                                 .block_rows = kernels::kBlocksPerSuperBlock,
                                 .block_begin = super_begin,
                                 .block_end = super_end});
}

absl::StatusOr<CpuSelector::Plan> CpuSelector::PlanOf(int64_t begin,
                                                      int64_t end) const {
  absl::StatusOr<kernels::TilePlan> tiles = Build(begin, end);
  if (!tiles.ok()) return AsInternal(tiles.status());
  Plan plan{.tiles = *std::move(tiles)};
  plan.density = kernels::Cost(plan.tiles).density;
  if (!plan.tiles.mean_blocks.empty()) {
    plan.k_means = k_means_.data();
    plan.v_means = v_means_.data();
  }
  return plan;
}

absl::StatusOr<kernels::TilePlan> CpuSelector::Build(int64_t begin,
                                                     int64_t end) const {
  using Kind = SelectorSpec::Kind;
  kernels::PlanShape shape{
      .q_begin = begin, .q_len = end - begin, .kv_len = end};
  if (IsDenseSegment(spec_, segment_.end)) return kernels::DensePlan(shape);
  switch (spec_.kind) {
    case Kind::kDense:
      return kernels::DensePlan(shape);
    case Kind::kAShape:
    case Kind::kTriShape:
      return kernels::AShapePlan(shape, spec_.num_initial, spec_.num_local,
                                 DenseRowsOf(spec_, segment_.end));
    case Kind::kDynamic:
      // Chosen over the whole segment, columns may lie behind this piece.
      shape.kv_len = segment_.end;
      return BuildDynamic(shape);
    case Kind::kRandomBlocks:
    case Kind::kOracle:
      return BuildBestTiles(shape);
  }
  return absl::InternalError("unknown kind of selector");
}

absl::StatusOr<kernels::TilePlan> CpuSelector::BuildBestTiles(
    kernels::PlanShape shape) const {
  shape.tile_rows = kernels::kBlockTileRows;
  const kernels::DenseRows dense = DenseRowsOf(spec_, segment_.end);
  if (spec_.kind == SelectorSpec::Kind::kRandomBlocks) {
    return kernels::RandomTilesPlan(shape, config_.num_q_heads,
                                    spec_.block_density, dense, spec_.seed,
                                    layer_);
  }
  // The oracle: a probe of all the rows of a query tile.
  kernels::TileMasses masses(shape, config_.num_q_heads);
  std::vector<float> sums(config_.num_q_heads * shape.kv_len);
  for (int64_t q_tile = 0; q_tile < masses.num_q_tiles(); ++q_tile) {
    const auto [begin, end] = masses.RowsOf(q_tile);
    kernels::ProbeAttentionParams probe =
        ProbeOf(RowsOf(segment_, config_, begin, end), config_, end - begin);
    probe.column_sums = sums.data();
    OVERTURE_RETURN_IF_ERROR(kernels::ProbeAttentionCpu(probe));
    masses.Add(q_tile, sums);
  }
  return kernels::BestTilesPlan(
      shape, config_.num_q_heads, spec_.block_density, dense,
      [&](int32_t head, int64_t q_tile, absl::Span<float> scores) {
        masses.Scores(head, q_tile, scores);
      });
}

absl::StatusOr<kernels::TilePlan> CpuSelector::BuildDynamic(
    const kernels::PlanShape& shape) const {
  if (!Scores(rules_) && !Corrects(rules_)) {
    return kernels::BuildVerticalSlashPlan(shape, indices_,
                                           kernels::RangeForm::kAligned);
  }
  kernels::PlanShape block_shape = shape;
  block_shape.tile_rows = kernels::kBlockTileRows;
  OVERTURE_ASSIGN_OR_RETURN(
      const kernels::TilePlan plan,
      kernels::BuildVerticalSlashPlan(block_shape, indices_,
                                      kernels::RangeForm::kAligned));
  const int64_t dim = config_.head_dim;
  const int64_t q_row = config_.num_q_heads * dim;
  const int64_t blocks = segment_.num_tokens / kernels::kMeanBlockKeys;
  const int64_t supers = blocks / kernels::kBlocksPerSuperBlock;
  OVERTURE_ASSIGN_OR_RETURN(
      const kernels::BlockSets sets,
      kernels::ChooseBlocksCpu(
          {.dtype = segment_.dtype,
           .q = segment_.q + (shape.q_begin - segment_.begin) * q_row *
                                 SizeOf(segment_.dtype),
           .k_means = k_means_.data(),
           .super_means = super_means_.data(),
           .stride_q_row = q_row,
           .stride_q_head = dim,
           .stride_mean_row = dim,
           .stride_mean_head = blocks * dim,
           .stride_super_row = dim,
           .stride_super_head = supers * dim,
           .num_q_heads = config_.num_q_heads,
           .num_kv_heads = config_.num_kv_heads,
           .head_dim = config_.head_dim,
           .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
           .q_begin = shape.q_begin,
           .q_len = shape.q_len},
          rules_));
  return kernels::AddBlocks(plan, sets, rules_);
}

}  // namespace overture::engine
