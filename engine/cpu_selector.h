// Selection on the CPU: which keys the rows of a segment attend to, by any
// SelectorSpec. All that depends on the kind of selector stands here; the layer
// loop asks segment by segment:
//
//   selector.Choose(layer, segment, votes)    looks at queries and keys, once
//   selector.PlanOf(begin, end)               for each piece of the segment
//
// Thread-compatible. Errors: INTERNAL for our own bugs, RESOURCE_EXHAUSTED.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model_config.h"
#include "engine/segment_tensors.h"
#include "engine/selector_spec.h"
#include "kernels/selectors/block_scores.h"
#include "kernels/selectors/static_plans.h"
#include "kernels/selectors/vertical_slash.h"
#include "kernels/tile_plan.h"

namespace overture::engine {

class CpuSelector {
 public:
  // Borrows both. REQUIRES Validate(spec, config) and Supports(spec).
  CpuSelector(const SelectorSpec& spec, const ModelConfig& config)
      : spec_(spec), config_(config) {}

  // UNIMPLEMENTED naming the field that does not run here.
  static absl::Status Supports(const SelectorSpec& spec);

  // Most bytes that choosing for a prompt of this length holds at once, for any
  // selector.
  static int64_t WorkspaceBytes(const ModelConfig& config, int64_t num_tokens);

  // The segment must stay as it is until the last of its plans is built.
  // `votes` may be null; where the selector's own pass holds the window's rows,
  // it writes them and sets done.
  absl::Status Choose(int32_t layer, const SegmentTensors& segment,
                      WindowVotes* votes);

  struct Plan {
    kernels::TilePlan tiles;
    double density = 1.0;  // computed pairs over causal ones, as Cost counts
    // What corrected blocks enter as, [num_kv_heads, num_tokens /
    // kMeanBlockKeys, head_dim]; null unless a head corrects some. Good until
    // the next call of Choose.
    const std::byte* k_means = nullptr;
    const std::byte* v_means = nullptr;
  };
  // For rows [begin, end) of the segment that was last chosen for.
  absl::StatusOr<Plan> PlanOf(int64_t begin, int64_t end) const;

 private:
  absl::Status ChooseIndices(WindowVotes* votes);
  absl::Status UpdateMeans();
  absl::StatusOr<kernels::TilePlan> Build(int64_t begin, int64_t end) const;
  // kRandomBlocks and kOracle.
  absl::StatusOr<kernels::TilePlan> BuildBestTiles(
      kernels::PlanShape shape) const;
  absl::StatusOr<kernels::TilePlan> BuildDynamic(
      const kernels::PlanShape& shape) const;

  const SelectorSpec& spec_;
  const ModelConfig& config_;
  SegmentTensors segment_;
  int32_t layer_ = -1;

  // kDynamic. By query head of this layer:
  std::vector<kernels::VerticalSlashSize> sizes_;
  std::vector<kernels::BlockRule> rules_;
  std::vector<kernels::VerticalSlashIndex> indices_;
  // Means of this layer's whole blocks up to the segment's end, as Plan's, and
  // of its super-blocks; empty where no head wants them.
  int64_t num_blocks_ = 0;
  std::vector<std::byte> k_means_, v_means_, super_means_;
};

}  // namespace overture::engine
