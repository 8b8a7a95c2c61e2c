// One prefill on the GPU: the layer loop over all new tokens of a prompt, in
// the order of cpu_prefill.h.
//
//   for each layer
//     read the stored prefix into pinned memory, copy it to the device
//     for each segment of the new tokens
//       norm, QKV, RoPE            in chunks of kCudaChunkRows
//       choose the segment's keys  (cuda_selector.h)
//       attention
//       output projection, MLP     in chunks
//     copy the layer's new rows to pinned memory, on a stream of their own
//     hand out the layer before it
//
// Two layers' KV are held on each side: one is computed while the one before it
// is copied out and stored. The host runs at most two segments ahead of the
// device, so that a stop request waits for those.
//
// One thread; borrows everything; waits for the device before it returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/event.h"
#include "base/cuda/stream.h"
#include "engine/backend.h"
#include "engine/cuda_row_audit.h"
#include "engine/cuda_selector.h"
#include "engine/cuda_weights.h"
#include "engine/cuda_workspace.h"
#include "engine/segment_tensors.h"
#include "kernels/sparse_attention/device_plan.h"

namespace overture::engine {

class CudaPrefill {
 public:
  // What the back end lends. The regions of `plan` lie in `device` and
  // `pinned`.
  struct Resources {
    const CudaWeights& weights;
    AttentionPrecision attention = AttentionPrecision::kBF16;
    const Stream& compute;
    const Stream& copies;
    const CudaWorkspacePlan& plan;
    std::byte* device = nullptr;
    std::byte* pinned = nullptr;
  };

  // REQUIRES Validate(job, weights.config()).ok() and a plan of the job's
  // ShapeOf.
  CudaPrefill(const Resources& resources, const PrefillJob& job);

  // Once. Errors as Backend::Prefill, and RESOURCE_EXHAUSTED.
  absl::StatusOr<PrefillOutput> Run();

  static CudaWorkspaceShape ShapeOf(const PrefillJob& job,
                                    const ModelConfig& config);

 private:
  // Half-open range of absolute positions.
  struct Rows {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
  };
  // What the device was busy with; of the time up to the next mark.
  enum class Phase { kOther, kLinear, kSelector, kAttention, kAudit };
  struct Mark {
    Phase phase;
    Event event;
  };
  absl::Status RunLayers();
  absl::Status RunLayer(int32_t layer);
  absl::Status RunSegment(Rows segment);
  absl::Status FinishLayer(int32_t layer);
  absl::Status ReadPrefix(int32_t layer);
  absl::Status ProjectQkv(Rows segment);
  absl::Status Vote();
  absl::Status CopyVotes();
  absl::Status Attend(Rows segment, Rows output,
                      const kernels::DeviceTilePlan& plan);
  // Linear::Apply, timed.
  absl::Status Multiply(const kernels::Linear& linear,
                        const kernels::LinearInput& x, int64_t rows, void* y,
                        DType y_dtype, bool accumulate);
  absl::Status ProjectAndMlp(Rows segment, Rows output);
  absl::Status FinalLogits();

  // Copies rows [begin, end) of every head of a layer's KV.
  absl::Status CopyRows(std::byte* to, const std::byte* from, Rows rows,
                        const Stream& stream) const;
  // Waits until at most one segment is in flight, then checks for a stop.
  absl::Status KeepPace();
  absl::Status CheckStop() const;
  absl::Status Enter(Phase phase);
  absl::Status SumPhases();

  template <typename T>
  T* Device(const MemoryRegion& region) const {
    return reinterpret_cast<T*>(resources_.device + region.offset);
  }
  template <typename T>
  T* Pinned(const MemoryRegion& region) const {
    return reinterpret_cast<T*>(resources_.pinned + region.offset);
  }
  int64_t num_tokens() const {
    return static_cast<int64_t>(job_.tokens.size());
  }
  bool votes() const { return NeedsVotes(job_); }
  int32_t slot() const { return layer_ % 2; }
  // K of the layer at work, [num_kv_heads, tokens, head_dim] bf16; V behind it.
  std::byte* k() const { return Device<std::byte>(plan_.kv[slot()]); }
  std::byte* v() const { return k() + plan_.kv[slot()].bytes / 2; }
  float* residual_row(int64_t position) const {
    return Device<float>(plan_.residual) +
           (position - job_.num_cached) * config_.hidden_size;
  }
  // Of the input of the next product, null where products read bf16.
  float* row_scales() const {
    return weights_.linears() == LinearPrecision::kFp8
               ? Device<float>(plan_.row_scales)
               : nullptr;
  }
  MutableLayerKvView host_view(int32_t layer) const;
  // Rows [begin, end), whose queries begin at q, and all keys before.
  SegmentTensors TensorsOf(Rows rows, const std::byte* q) const;

  const Resources resources_;
  const CudaWorkspacePlan& plan_;
  const CudaWeights& weights_;
  const ModelConfig& config_;
  const PrefillJob& job_;
  const Stream& compute_;
  const SegmentRule segments_;
  CudaSelector selector_;
  CudaRowAudit audit_;

  int32_t layer_ = 0;
  int64_t first_output_row_ = 0;  // of this layer
  int64_t quantized_keys_ = 0;    // of this layer, for FP8 attention
  WindowVotes votes_;             // of this layer

  // Set by Run before anything else.
  std::optional<Event> computed_;  // this layer, votes included
  std::vector<Event> copied_;      // [2], by slot
  std::vector<Event> paced_;       // [2], by segment in turn
  int64_t num_segments_ = 0;       // given to the device so far
  std::vector<Mark> marks_;

  PrefillOutput output_;
};

}  // namespace overture::engine
