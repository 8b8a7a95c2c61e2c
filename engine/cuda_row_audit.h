// The audit and the observed rows (row_audit.h) of a prefill on the GPU, the
// twin of cpu_row_audit.h: takes what they need of each segment while its
// queries are held, and waits for nothing.
//
//   BeginLayer; for each segment TakeObserved, and for each attention call of
//   it LseOf before and TakeAttended after; EndLayer; at the end Fetch, and
//   once the stream has passed that, Audited
//
// One thread; launches on one stream and borrows everything until that has
// passed. Errors: INTERNAL for our own bugs and the device's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/cuda/stream.h"
#include "engine/backend.h"
#include "engine/cuda_workspace.h"
#include "engine/model_config.h"
#include "engine/row_audit.h"
#include "engine/segment_tensors.h"

namespace overture::engine {

class CudaRowAudit {
 public:
  // What it works in, of the bytes that MemoryOf asks for.
  struct Resources {
    const Stream& stream;
    std::byte* device = nullptr;  // 256-byte aligned
    std::byte* pinned = nullptr;
  };

  // Borrows job and config.
  CudaRowAudit(const PrefillJob& job, const ModelConfig& config,
               const Resources& resources);

  static PartMemory MemoryOf(const PrefillJob& job, const ModelConfig& config);
  // Enough for any audit of so many new tokens, without an observer.
  static PartMemory MostMemory(const ModelConfig& config, int64_t num_new);

  // The layer's attention computes rows from `first_output_row` on.
  void BeginLayer(int32_t layer, int64_t first_output_row);
  // Where attention over rows [begin, end), at most kCudaPlanRows, leaves its
  // log-sum-exps, [num_q_heads, rows]; null: none of them is audited.
  float* LseOf(int64_t begin, int64_t end) const;
  // After that, of a segment that holds these rows.
  absl::Status TakeAttended(const SegmentTensors& segment, int64_t begin,
                            int64_t end);
  absl::Status TakeObserved(const SegmentTensors& segment);
  // After the last segment; k as of SegmentTensors.
  absl::Status EndLayer(const std::byte* k);

  // Hands a layer's rows to the observer, if there is one. REQUIRES that the
  // stream has passed its EndLayer and that no more than one layer was begun
  // since.
  void Observe(int32_t layer, const LayerKvView& kv) const;

  absl::Status Fetch();
  // By layer; empty without an audit.
  std::vector<AuditedLayer> Audited() const;

 private:
  struct Layout;
  static Layout LayoutOf(int32_t audit_rows, int64_t observed_rows,
                         const ModelConfig& config, int64_t num_new);

  // A layer's log-sum-exps in lse_, [rows, num_q_heads]: of what its plan kept
  // and, LseCount() further, of all.
  int64_t LseCount() const {
    return int64_t{job_.audit_rows} * config_.num_q_heads;
  }
  int64_t LseOffset(int32_t layer) const { return layer * 2 * LseCount(); }

  const PrefillJob& job_;
  const ModelConfig& config_;
  const Resources resources_;
  const int64_t q_row_bytes_;

  // Null without an audit.
  std::byte* q_ = nullptr;      // [audit_rows, num_q_heads * head_dim]
  float* piece_lse_ = nullptr;  // [num_q_heads, rows of an attention call]
  float* lse_ = nullptr;        // [layers][2][audit_rows, num_q_heads]
  float* host_lse_ = nullptr;   // as lse_, pinned
  int64_t lse_bytes_ = 0;
  std::byte* scratch_ = nullptr;  // of the exact ones
  int64_t scratch_bytes_ = 0;
  absl::Span<const int64_t> observed_;
  // Queries of observed_, by layer in turn; pinned.
  std::array<std::byte*, 2> host_q_ = {};

  int32_t layer_ = 0;
  std::vector<std::vector<int64_t>> rows_;  // audited, by layer
};

}  // namespace overture::engine
