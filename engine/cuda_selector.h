// Selection on the GPU: which keys the rows of a segment attend to, by any
// SelectorSpec; the twin of cpu_selector.h. All that depends on the kind of
// selector stands here; the layer loop asks segment by segment, and nothing
// waits for the device but the first use of a plan that depends on no data, and
// the ends of a table (random blocks, the oracle), which are chosen on the
// host.
//
// One thread; launches on one stream and borrows everything until that has
// passed. Errors: INTERNAL for our own bugs and the device's, and
// RESOURCE_EXHAUSTED.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "engine/backend.h"
#include "engine/cuda_hybrid.h"
#include "engine/cuda_workspace.h"
#include "engine/model_config.h"
#include "engine/segment_tensors.h"
#include "engine/selector_spec.h"
#include "kernels/probe_attention/probe_params.h"
#include "kernels/selectors/static_plans.h"
#include "kernels/selectors/vertical_slash_gpu.h"
#include "kernels/sparse_attention/device_plan.h"
#include "kernels/sparse_attention/uploaded_plan.h"

namespace overture::engine {

class CudaSelector {
 public:
  // What it works in, of the bytes that MemoryOf asks for.
  struct Resources {
    const Stream& stream;
    std::byte* device = nullptr;  // 256-byte aligned
    std::byte* pinned = nullptr;
    // Shared with other probes on the stream: kernels::ProbeScratchBytes.
    void* probe_scratch = nullptr;
    int64_t probe_scratch_bytes = 0;
  };

  // Borrows spec and config. REQUIRES Validate(spec, config), Supports(spec),
  // and of the memory that it covers a prompt of this many tokens.
  CudaSelector(const SelectorSpec& spec, const ModelConfig& config,
               int64_t num_tokens, int64_t num_new, const Resources& resources);

  // UNIMPLEMENTED naming the field that does not run here.
  static absl::Status Supports(const SelectorSpec& spec);

  static PartMemory MemoryOf(const SelectorSpec& spec,
                             const ModelConfig& config, int64_t num_tokens,
                             int64_t num_new);
  // Enough for any selector and any number of new tokens.
  static PartMemory MostMemory(const ModelConfig& config, int64_t num_tokens);

  // Before the first segment: clears what is counted.
  absl::Status Begin();

  // Looks at the segment's queries and keys. `votes` may be null; where the
  // selector's own pass holds the window's rows, it writes them and sets done.
  absl::Status Choose(int32_t layer, const SegmentTensors& segment,
                      WindowVotes* votes);

  // Most rows of a plan of the segment that was last chosen for, at most
  // kCudaPlanRows.
  int64_t max_plan_rows() const {
    return IsHybrid() ? hybrid_.max_rows() : kCudaPlanRows;
  }

  // For rows [begin, end), at most max_plan_rows(), of the segment that was
  // last chosen for; good until
  // the next call of Choose or PlanOf has been launched.
  absl::StatusOr<kernels::DeviceTilePlan> PlanOf(int64_t begin, int64_t end);

  // Sets the means that the corrected blocks of its plans enter as.
  void SetMeans(kernels::SparseAttentionParams* params) const {
    if (IsHybrid()) hybrid_.SetMeans(params);
  }

  // After the last segment: brings the counts to the host, by when the stream
  // has passed this.
  absl::Status FetchCounts();
  // Of every layer, mean over heads. REQUIRES FetchCounts and a synchronised
  // stream.
  std::vector<AttendedPairs> Pairs() const;

 private:
  struct Layout;
  // A plan made on the host and the share of causal pairs it computes.
  struct HostPlan {
    kernels::UploadedPlan uploaded;
    double density = 1.0;
  };
  struct Memory {
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };

  CudaSelector(const SelectorSpec& spec, const ModelConfig& config,
               int64_t num_tokens, const Resources& resources,
               const Layout& layout);
  static Layout LayoutOf(const SelectorSpec& spec, const ModelConfig& config,
                         int64_t num_tokens, int64_t num_new);
  // Whether keys of the segment are chosen on the device.
  bool IsDynamic() const {
    return spec_.kind == SelectorSpec::Kind::kDynamic &&
           !IsDenseSegment(spec_, segment_.end);
  }
  // Whether blocks are among them.
  bool IsHybrid() const { return IsDynamic() && hybrid_.is_on(); }
  // Whether they are chosen on the host, layer by layer.
  bool IsBestTiles() const {
    return spec_.kind == SelectorSpec::Kind::kRandomBlocks ||
           spec_.kind == SelectorSpec::Kind::kOracle;
  }
  absl::Status Probe(const kernels::ProbeAttentionParams& probe) const;
  absl::StatusOr<const HostPlan*> GetHostPlan(int64_t begin, int64_t end);
  absl::StatusOr<kernels::TilePlan> BuildOnHost(int64_t begin, int64_t end);
  absl::StatusOr<kernels::TilePlan> OraclePlan(
      const kernels::PlanShape& shape, const kernels::DenseRows& dense) const;

  const SelectorSpec& spec_;
  const ModelConfig& config_;
  const Resources resources_;

  // Null where the kind has none.
  float* columns_ = nullptr;    // [num_q_heads, num_tokens], sums of a probe
  float* diagonals_ = nullptr;  // as columns_
  Memory choice_memory_;        // of choice_
  Memory plan_memory_;          // of a plan made from it
  uint64_t* counts_ = nullptr;  // [layers] of pairs, of plans on the device
  uint64_t* host_counts_ = nullptr;  // as counts_, pinned

  int32_t layer_ = 0;
  SegmentTensors segment_;
  kernels::VerticalSlashChoice choice_;  // of segment_, if IsDynamic()
  CudaHybrid hybrid_;
  std::vector<AttendedPairs> pairs_;  // by layer; without counts_
  std::map<std::pair<int64_t, int64_t>, HostPlan> static_plans_;  // by rows
  std::optional<HostPlan> best_tiles_;  // the last one
};

}  // namespace overture::engine
