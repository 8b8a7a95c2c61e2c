#include "engine/cpu_selector.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "base/status_macros.h"
#include "engine/backend.h"
#include "kernels/probe_attention/probe_attention_cpu.h"
#include "kernels/selectors/static_plans.h"

namespace overture::engine {

absl::Status CpuSelector::Supports(const SelectorSpec& spec) {
  using Kind = SelectorSpec::Kind;
  if (spec.kind == Kind::kTriShape) return NotYet("tri_shape");
  if (spec.kind == Kind::kRandomBlocks) return NotYet("random_blocks");
  if (spec.kind == Kind::kOracle) return NotYet("oracle");
  if (spec.kind != Kind::kDense && spec.dense_until > 0) {
    return NotYet("dense_until");
  }
  if (spec.skip_threshold > 0) return NotYet("skip_threshold");
  if (spec.whole_prompt) return NotYet("whole_prompt");
  const auto has_blocks = [](const kernels::VerticalSlashSize& size) {
    return size.blocks.IsOn() || size.blocks.correct_means;
  };
  if (AnyHead(spec, has_blocks)) return NotYet("blocks");
  return absl::OkStatus();
}

int64_t CpuSelector::WorkspaceBytes(const ModelConfig& config,
                                    int64_t num_tokens) {
  // Two probe sums (4 bytes) and a plan's key ranges (8 bytes for each of 64
  // query tiles, at most one per 64 keys) per query head, votes per KV head.
  return num_tokens * (config.num_q_heads * 16 + config.num_kv_heads * 4);
}

absl::Status CpuSelector::Choose(int32_t layer, const SegmentTensors& segment,
                                 WindowVotes* votes) {
  segment_ = segment;
  if (spec_.kind != SelectorSpec::Kind::kDynamic) return absl::OkStatus();
  return AsInternal(ChooseIndices(layer, votes));
}

absl::Status CpuSelector::ChooseIndices(int32_t layer, WindowVotes* votes) {
  const int64_t kv_len = segment_.end;
  const int64_t num_rows =
      std::min<int64_t>(kernels::kProbeRows, segment_.end - segment_.begin);
  std::vector<float> columns(config_.num_q_heads * kv_len);
  std::vector<float> diagonals(columns.size());
  kernels::ProbeAttentionParams probe = ProbeOf(segment_, config_, num_rows);
  probe.column_sums = columns.data();
  probe.diagonal_sums = diagonals.data();
  if (votes != nullptr && votes->window <= num_rows) AddVotes(votes, &probe);
  OVERTURE_RETURN_IF_ERROR(kernels::ProbeAttentionCpu(probe));

  const std::vector<kernels::VerticalSlashSize> sizes =
      SizesOfLayer(spec_, layer, config_.num_q_heads);
  indices_.clear();
  for (int32_t head = 0; head < config_.num_q_heads; ++head) {
    indices_.push_back(kernels::SelectVerticalSlash(
        absl::MakeConstSpan(columns).subspan(head * kv_len, kv_len),
        absl::MakeConstSpan(diagonals).subspan(head * kv_len, kv_len),
        sizes[head]));
  }
  return absl::OkStatus();
}

absl::StatusOr<CpuSelector::Plan> CpuSelector::PlanOf(int64_t begin,
                                                      int64_t end) const {
  absl::StatusOr<kernels::TilePlan> tiles = Build(begin, end);
  if (!tiles.ok()) return AsInternal(tiles.status());
  Plan plan{.tiles = *std::move(tiles)};
  plan.density = kernels::Cost(plan.tiles).density;
  return plan;
}

absl::StatusOr<kernels::TilePlan> CpuSelector::Build(int64_t begin,
                                                     int64_t end) const {
  using Kind = SelectorSpec::Kind;
  kernels::PlanShape shape{
      .q_begin = begin, .q_len = end - begin, .kv_len = end};
  switch (spec_.kind) {
    case Kind::kDense:
      return kernels::DensePlan(shape);
    case Kind::kAShape:
      return kernels::AShapePlan(shape, spec_.num_initial, spec_.num_local);
    case Kind::kDynamic:
      // Chosen over the whole segment, columns may lie behind this piece.
      shape.kv_len = segment_.end;
      return kernels::BuildVerticalSlashPlan(shape, indices_,
                                             kernels::RangeForm::kAligned);
    case Kind::kTriShape:
    case Kind::kRandomBlocks:
    case Kind::kOracle:
      break;
  }
  return absl::InternalError("no plan for this kind of selector");
}

}  // namespace overture::engine
