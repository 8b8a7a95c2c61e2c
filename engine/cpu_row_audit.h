// The audit and the observed rows (row_audit.h) of a prefill on the CPU: takes
// what they need of each segment while its queries are held.
//
//   BeginLayer; for each segment TakeQueries, and for each attention call of it
//   LseOf before and TakeLse after; EndLayer
//
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/kv_layout.h"
#include "engine/aligned_buffer.h"
#include "engine/backend.h"
#include "engine/cpu_weights.h"
#include "engine/row_audit.h"

namespace overture::engine {

class CpuRowAudit {
 public:
  // Borrows both.
  CpuRowAudit(const CpuWeights& weights, const PrefillJob& job);

  // The layer's attention computes rows from `first_output_row` on.
  void BeginLayer(int32_t layer, int64_t first_output_row);
  // Rotated queries of rows [begin, end), [rows, num_q_heads * head_dim].
  void TakeQueries(int64_t begin, int64_t end, const std::byte* q);
  // Where attention over rows [begin, end), at most those of one piece, leaves
  // its log-sum-exps, [num_q_heads, rows]; null: none of them is audited.
  float* LseOf(int64_t begin, int64_t end);
  void TakeLse(int64_t begin, int64_t end);
  // `kv` are all rows of the layer.
  absl::Status EndLayer(const LayerKvView& kv);

  // By layer; empty without an audit.
  std::vector<AuditedLayer> Take() { return std::move(layers_); }

  // Of an audit of a prefill in pieces of `piece_rows`.
  static int64_t WorkspaceBytes(const CpuWeights& weights, int64_t piece_rows);

 private:
  // Queries of chosen rows.
  struct Copies {
    std::vector<int64_t> positions;  // ascending
    AlignedBuffer q;                 // [positions, num_q_heads * head_dim]
    QueryRows view() const { return {positions, q.data()}; }
  };
  void Take(int64_t begin, int64_t end, const std::byte* q, Copies* copies);

  const CpuWeights& weights_;
  const PrefillJob& job_;
  const int64_t q_row_bytes_;
  int32_t layer_ = 0;
  Copies audited_;   // of this layer
  Copies observed_;  // of every layer
  std::vector<float> piece_lse_;
  std::vector<float> plan_lse_;  // [audited, num_q_heads]
  std::vector<AuditedLayer> layers_;
};

}  // namespace overture::engine
