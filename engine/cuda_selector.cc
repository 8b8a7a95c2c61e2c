#include "engine/cuda_selector.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "absl/types/span.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "engine/row_pieces.h"
#include "kernels/probe_attention/probe_attention.h"
#include "kernels/selectors/best_tiles.h"
#include "kernels/selectors/static_plans.h"
#include "kernels/selectors/vertical_slash_gpu.h"
#include "kernels/tile_plan.h"

namespace overture::engine {

struct CudaSelector::Layout {
  MemoryRegion columns;
  MemoryRegion diagonals;
  MemoryRegion choice;
  MemoryRegion plan;
  MemoryRegion hybrid;
  MemoryRegion counts;
  int64_t plan_rows = 0;
  int64_t device_bytes = 0;
};

CudaSelector::Layout CudaSelector::LayoutOf(const SelectorSpec& spec,
                                            const ModelConfig& config,
                                            int64_t num_tokens,
                                            int64_t num_new) {
  using Kind = SelectorSpec::Kind;
  Layout layout;
  if (spec.kind != Kind::kDynamic && spec.kind != Kind::kOracle) return layout;
  const int64_t sum_bytes = config.num_q_heads * num_tokens * sizeof(float);
  MemoryCarver carver;
  layout.columns = carver.Take(sum_bytes);
  if (spec.kind == Kind::kDynamic) {
    const int64_t rows = std::min(
        {num_new, SegmentsOf(spec).LongestOf(num_tokens), kCudaPlanRows});
    int64_t choice_bytes = 0;
    int64_t plan_bytes = 0;
    for (int32_t layer = 0; layer < config.num_layers; ++layer) {
      const std::vector<kernels::VerticalSlashSize> sizes =
          SizesOfLayer(spec, layer, config.num_q_heads);
      choice_bytes = std::max(
          choice_bytes, kernels::VerticalSlashChoiceBytes(num_tokens, sizes));
      plan_bytes = std::max(
          plan_bytes, kernels::VerticalSlashPlanBytes(rows, num_tokens, sizes));
      if (spec.head_sizes.empty()) break;  // every layer's are these
    }
    layout.diagonals = carver.Take(sum_bytes);
    layout.choice = carver.Take(choice_bytes);
    layout.plan = carver.Take(plan_bytes);
    layout.plan_rows = rows;
    layout.hybrid = carver.Take(
        CudaHybrid::BytesOf(spec, config, num_tokens, layout.plan_rows));
    layout.counts = carver.Take(config.num_layers * sizeof(uint64_t));
  }
  layout.device_bytes = carver.end();
  return layout;
}

PartMemory CudaSelector::MemoryOf(const SelectorSpec& spec,
                                  const ModelConfig& config, int64_t num_tokens,
                                  int64_t num_new) {
  const Layout layout = LayoutOf(spec, config, num_tokens, num_new);
  return {.device_bytes = layout.device_bytes,
          .pinned_bytes = layout.counts.bytes};
}

PartMemory CudaSelector::MostMemory(const ModelConfig& config,
                                    int64_t num_tokens) {
  // More columns than any configuration in use has (3,500), and more distances
  // (6,096), in one segment as long as there are.
  SelectorSpec spec{
      .kind = SelectorSpec::Kind::kDynamic,
      .vertical_slash = {.vertical = 8192,
                         .slash = 8192,
                         .blocks = {.threshold = 1, .correct_means = true}},
      .segment_tokens = kMaxSegmentTokens};
  return MemoryOf(spec, config, num_tokens, num_tokens);
}

CudaSelector::CudaSelector(const SelectorSpec& spec, const ModelConfig& config,
                           int64_t num_tokens, int64_t num_new,
                           const Resources& resources)
    : CudaSelector(spec, config, num_tokens, resources,
                   LayoutOf(spec, config, num_tokens, num_new)) {}

CudaSelector::CudaSelector(const SelectorSpec& spec, const ModelConfig& config,
                           int64_t num_tokens, const Resources& resources,
                           const Layout& layout)
    : spec_(spec),
      config_(config),
      resources_(resources),
      hybrid_(spec, config, num_tokens, layout.plan_rows,
              resources.device + layout.hybrid.offset, resources.stream),
      pairs_(config.num_layers) {
  const auto at = [&](const MemoryRegion& region) {
    return region.bytes > 0 ? resources_.device + region.offset : nullptr;
  };
  columns_ = reinterpret_cast<float*>(at(layout.columns));
  diagonals_ = reinterpret_cast<float*>(at(layout.diagonals));
  choice_memory_ = {at(layout.choice), layout.choice.bytes};
  plan_memory_ = {at(layout.plan), layout.plan.bytes};
  counts_ = reinterpret_cast<uint64_t*>(at(layout.counts));
  host_counts_ = reinterpret_cast<uint64_t*>(resources_.pinned);
}

absl::Status CudaSelector::Supports(const SelectorSpec& spec) {
  if (spec.skip_threshold > 0) return NotYet("skip_threshold");
  return absl::OkStatus();
}

absl::Status CudaSelector::Begin() {
  if (counts_ == nullptr) return absl::OkStatus();
  return CudaStatus(
      cudaMemsetAsync(counts_, 0, config_.num_layers * sizeof(uint64_t),
                      resources_.stream.get()),
      "clearing the count of pairs");
}

absl::Status CudaSelector::Choose(int32_t layer, const SegmentTensors& segment,
                                  WindowVotes* votes) {
  layer_ = layer;
  segment_ = segment;
  if (!IsDynamic()) return absl::OkStatus();
  const int64_t num_rows =
      std::min<int64_t>(kernels::kProbeRows, segment.end - segment.begin);
  kernels::ProbeAttentionParams probe = ProbeOf(segment, config_, num_rows);
  probe.column_sums = columns_;
  probe.diagonal_sums = diagonals_;
  if (votes != nullptr && votes->window <= num_rows) AddVotes(votes, &probe);
  const std::vector<kernels::VerticalSlashSize> sizes =
      SizesOfLayer(spec_, layer, config_.num_q_heads);
  // Forced columns and distances alone ask no score.
  if (!std::all_of(sizes.begin(), sizes.end(), kernels::IsStatic) ||
      probe.window_votes != nullptr) {
    OVERTURE_RETURN_IF_ERROR(Probe(probe));
  }
  absl::StatusOr<kernels::VerticalSlashChoice> choice =
      kernels::LaunchVerticalSlashChoice(
          {.column_sums = columns_,
           .diagonal_sums = diagonals_,
           .sizes = sizes,
           .kv_len = segment.end},
          choice_memory_.data, choice_memory_.bytes, resources_.stream.get());
  if (!choice.ok()) return AsInternal(choice.status());
  choice_ = *std::move(choice);
  return AsInternal(hybrid_.Choose(layer, segment));
}

absl::Status CudaSelector::Probe(
    const kernels::ProbeAttentionParams& probe) const {
  return AsInternal(kernels::LaunchProbeAttention(
      probe, resources_.probe_scratch, resources_.probe_scratch_bytes,
      resources_.stream.get()));
}

absl::StatusOr<kernels::DeviceTilePlan> CudaSelector::PlanOf(int64_t begin,
                                                             int64_t end) {
  const double causal = static_cast<double>(CausalPairs(begin, end));
  pairs_[layer_].causal += causal;
  if (IsDynamic()) {
    uint64_t* const pairs = counts_ + layer_;
    const absl::StatusOr<kernels::DeviceTilePlan> plan =
        IsHybrid()
            ? hybrid_.PlanOf(choice_, begin, end, pairs)
            : kernels::LaunchVerticalSlashPlan(
                  choice_,
                  {.q_begin = begin, .q_len = end - begin, .pairs = pairs},
                  plan_memory_.data, plan_memory_.bytes,
                  resources_.stream.get());
    if (!plan.ok()) return AsInternal(plan.status());
    return *plan;
  }
  OVERTURE_ASSIGN_OR_RETURN(const HostPlan* plan, GetHostPlan(begin, end));
  pairs_[layer_].computed += causal * plan->density;
  return plan->uploaded.plan();
}

absl::StatusOr<const CudaSelector::HostPlan*> CudaSelector::GetHostPlan(
    int64_t begin, int64_t end) {
  // Of the others each layer has its own.
  const bool is_static = !IsBestTiles();
  const auto found = static_plans_.find({begin, end});
  if (is_static && found != static_plans_.end()) return &found->second;
  const absl::StatusOr<kernels::TilePlan> plan = BuildOnHost(begin, end);
  if (!plan.ok()) return AsInternal(plan.status());
  // Waits for the stream, so that the plan before it is no longer in use.
  absl::StatusOr<kernels::UploadedPlan> uploaded =
      kernels::UploadedPlan::Upload(*plan, config_.num_q_heads,
                                    config_.num_kv_heads, resources_.stream);
  if (!uploaded.ok()) return AsInternal(uploaded.status());
  HostPlan host{*std::move(uploaded), kernels::Cost(*plan).density};
  if (is_static) {
    return &static_plans_.emplace(std::pair(begin, end), std::move(host))
                .first->second;
  }
  return &best_tiles_.emplace(std::move(host));
}

absl::StatusOr<kernels::TilePlan> CudaSelector::BuildOnHost(int64_t begin,
                                                            int64_t end) {
  using Kind = SelectorSpec::Kind;
  const kernels::PlanShape shape{.q_begin = begin,
                                 .q_len = end - begin,
                                 .kv_len = end,
                                 .tile_rows = kernels::kGpuTileRows,
                                 .tile_keys = kernels::kGpuTileKeys};
  const kernels::DenseRows dense = DenseRowsOf(spec_, segment_.end);
  if (IsDenseSegment(spec_, segment_.end)) return kernels::DensePlan(shape);
  switch (spec_.kind) {
    case Kind::kDense:
      return kernels::DensePlan(shape);
    case Kind::kAShape:
    case Kind::kTriShape:
      return kernels::AShapePlan(shape, spec_.num_initial, spec_.num_local,
                                 dense);
    case Kind::kRandomBlocks:
      return kernels::RandomTilesPlan(shape, config_.num_q_heads,
                                      spec_.block_density, dense, spec_.seed,
                                      layer_);
    case Kind::kOracle:
      return OraclePlan(shape, dense);
    case Kind::kDynamic:
      break;  // chosen on the device
  }
  return absl::InternalError("no plan of the host's for this selector");
}

absl::StatusOr<kernels::TilePlan> CudaSelector::OraclePlan(
    const kernels::PlanShape& shape, const kernels::DenseRows& dense) const {
  kernels::TileMasses masses(shape, config_.num_q_heads);
  std::vector<float> sums(config_.num_q_heads * shape.kv_len);
  for (int64_t q_tile = 0; q_tile < masses.num_q_tiles(); ++q_tile) {
    const auto [begin, end] = masses.RowsOf(q_tile);
    kernels::ProbeAttentionParams probe =
        ProbeOf(RowsOf(segment_, config_, begin, end), config_, end - begin);
    probe.column_sums = columns_;
    OVERTURE_RETURN_IF_ERROR(Probe(probe));
    OVERTURE_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(sums.data(), columns_,
                        config_.num_q_heads * end * sizeof(float),
                        cudaMemcpyDeviceToHost, resources_.stream.get()),
        "copying a query tile's masses"));
    OVERTURE_RETURN_IF_ERROR(resources_.stream.Synchronize());
    masses.Add(q_tile, sums);
  }
  return kernels::BestTilesPlan(
      shape, config_.num_q_heads, spec_.block_density, dense,
      [&](int32_t head, int64_t q_tile, absl::Span<float> scores) {
        masses.Scores(head, q_tile, scores);
      });
}

absl::Status CudaSelector::FetchCounts() {
  if (counts_ == nullptr) return absl::OkStatus();
  return CudaStatus(
      cudaMemcpyAsync(host_counts_, counts_,
                      config_.num_layers * sizeof(uint64_t),
                      cudaMemcpyDeviceToHost, resources_.stream.get()),
      "copying the count of pairs");
}

std::vector<AttendedPairs> CudaSelector::Pairs() const {
  std::vector<AttendedPairs> pairs = pairs_;
  if (counts_ == nullptr) return pairs;
  for (size_t layer = 0; layer < pairs.size(); ++layer) {
    pairs[layer].computed +=
        static_cast<double>(host_counts_[layer]) / config_.num_q_heads;
  }
  return pairs;
}

}  // namespace overture::engine
