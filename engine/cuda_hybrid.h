// Blocks by pooled scores beside columns and distances on the GPU, layer by
// layer: the means of keys and values, the scores, and the plans that unite all
// (kernels/selectors/hybrid_gpu.h). What cpu_selector.h does for them.
//
// One thread; launches on one stream and borrows everything until that has
// passed. Errors: of the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "engine/model_config.h"
#include "engine/segment_tensors.h"
#include "engine/selector_spec.h"
#include "kernels/selectors/block_scores.h"
#include "kernels/selectors/vertical_slash_gpu.h"
#include "kernels/sparse_attention/device_plan.h"
#include "kernels/sparse_attention/params.h"

namespace overture::engine {

class CudaHybrid {
 public:
  // Device memory for a prompt of `num_tokens`, plans of at most `num_rows`
  // rows at a time; 0 if no head of the spec keeps blocks or corrects means.
  static int64_t BytesOf(const SelectorSpec& spec, const ModelConfig& config,
                         int64_t num_tokens, int64_t num_rows);

  // Borrows spec and config. `device` has BytesOf bytes, 256-byte aligned.
  CudaHybrid(const SelectorSpec& spec, const ModelConfig& config,
             int64_t num_tokens, int64_t num_rows, void* device,
             const Stream& stream);

  // Takes up a segment, in order of layers and of positions: the means of the
  // blocks that it completes.
  absl::Status Choose(int32_t layer, const SegmentTensors& segment);

  // Whether a head of this layer keeps blocks or corrects means; if not, there
  // is no plan here.
  bool is_on() const { return scores_ || corrects_; }
  // Most rows of a plan of this layer.
  int64_t max_rows() const { return max_rows_; }

  // For rows [begin, end) of the segment, of a choice for all of it; good until
  // the next plan. Pairs as VerticalSlashPlanParams.
  absl::StatusOr<kernels::DeviceTilePlan> PlanOf(
      const kernels::VerticalSlashChoice& choice, int64_t begin, int64_t end,
      uint64_t* pairs);

  // Sets the means that a plan's corrected blocks enter as.
  void SetMeans(kernels::SparseAttentionParams* params) const;

 private:
  // On the device; null where no head wants them.
  struct Buffers {
    uint16_t* k_means = nullptr;  // bf16 [num_kv_heads, blocks, head_dim]
    uint16_t* v_means = nullptr;  // as k_means
    uint16_t* super_means = nullptr;
    uint32_t* bits = nullptr;  // of BlockSets, of max_rows rows
    std::byte* plan = nullptr;
    int64_t plan_bytes = 0;
  };

  static int64_t LayOut(const SelectorSpec& spec, const ModelConfig& config,
                        int64_t num_tokens, int64_t num_rows, void* device,
                        Buffers* buffers);
  // Of `num_blocks` whole blocks, this far apart.
  int64_t stride_mean_head() const;
  int64_t stride_super_head() const;

  const SelectorSpec& spec_;
  const ModelConfig& config_;
  const int64_t num_tokens_;
  const int64_t num_rows_;
  const Stream& stream_;
  Buffers buffers_;

  SegmentTensors segment_;
  int32_t layer_ = -1;
  int64_t num_blocks_ = 0;  // of this layer whose means are there
  // Of this layer.
  std::vector<kernels::BlockRule> rules_;
  bool scores_ = false;
  bool corrects_ = false;
  int64_t max_rows_ = 0;
};

}  // namespace overture::engine
