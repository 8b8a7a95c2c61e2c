// One prefill on the CPU: the layer loop over all new tokens of a prompt.
//
//   for each layer
//     read the stored prefix into the layer's K and V
//     for each segment of the new tokens
//       norm, QKV, RoPE            in chunks of kChunkRows
//       choose the segment's keys  (cpu_selector.h)
//       for each piece of kPieceRows rows
//         attention
//         output projection, MLP   in chunks of kChunkRows
//     hand out the layer's KV, gather its rows of the view
//
// Only one layer's KV is held. In the last layer nothing but the last row goes
// on to attention, since only its logits are asked for.
//
// Every step computes a row from that row and from keys up to it, tiles are
// aligned to absolute positions, and plans are chosen per segment: so the bits
// of a token's KV do not depend on what follows its segment. Under FP8
// attention, which scales 64 keys together and subtracts a mean of the first
// 256, they depend on the rest of its token block, too.
//
// One thread; products and attention use OpenMP inside.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/aligned_buffer.h"
#include "engine/backend.h"
#include "engine/cpu_row_audit.h"
#include "engine/cpu_selector.h"
#include "engine/cpu_weights.h"
#include "engine/segment_tensors.h"

namespace overture::engine {

class CpuPrefill {
 public:
  // Borrows weights and job. May throw std::bad_alloc, as Run may. REQUIRES of
  // FP8 attention what CreateCpuBackend and Backend::Supports check.
  CpuPrefill(const CpuWeights& weights, AttentionPrecision attention,
             const PrefillJob& job);

  // Once. Errors as Backend::Prefill.
  absl::StatusOr<PrefillOutput> Run();

  // An upper bound for any selector, views excluded.
  static int64_t WorkspaceBytes(const CpuWeights& weights,
                                AttentionPrecision attention,
                                int64_t num_tokens);

 private:
  // Half-open range of absolute positions.
  struct Rows {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
  };

  absl::Status RunLayer(int32_t layer);
  absl::Status ReadPrefix(int32_t layer);
  absl::Status ProjectQkv(const CpuLayerWeights& weights, Rows segment);
  absl::Status Choose(Rows segment);
  absl::Status Attend(Rows segment, Rows piece);
  absl::Status ProjectAndMlp(const CpuLayerWeights& weights, Rows piece);
  absl::Status GatherView();
  absl::Status FinalLogits();
  absl::Status CheckStop() const;

  int64_t num_tokens() const {
    return static_cast<int64_t>(job_.tokens.size());
  }
  bool votes() const { return NeedsVotes(job_); }
  float* residual_row(int64_t position) {
    return residual_.As<float>() +
           (position - job_.num_cached) * weights_.config().hidden_size;
  }
  MutableLayerKvView kv_view() const;
  // Rows [begin, end), whose queries begin at q, and all keys before.
  SegmentTensors TensorsOf(Rows rows, const std::byte* q) const;

  const CpuWeights& weights_;
  const AttentionPrecision attention_;
  const PrefillJob& job_;
  const int64_t element_bytes_;
  const SegmentRule segments_;
  CpuSelector selector_;

  int32_t layer_ = 0;
  int64_t first_output_row_ = 0;  // of this layer

  AlignedBuffer residual_;  // fp32 [new tokens, hidden]
  AlignedBuffer k_;         // [num_kv_heads, tokens, head_dim]
  AlignedBuffer v_;
  AlignedBuffer q_;         // [segment, num_q_heads * head_dim]
  AlignedBuffer o_;         // [piece, num_q_heads * head_dim]
  AlignedBuffer window_q_;  // [window, num_q_heads * head_dim]
  AlignedBuffer normed_;    // [chunk, hidden]
  AlignedBuffer qkv_;       // fp32 [chunk, qkv_size]
  AlignedBuffer hidden_;    // fp32 [chunk, hidden]
  AlignedBuffer gate_up_;   // [chunk, 2 * intermediate]
  AlignedBuffer act_;       // [chunk, intermediate]

  std::vector<float> window_votes_;  // [num_kv_heads, tokens]
  WindowVotes votes_;                // of this layer, into window_votes_
  CpuRowAudit audit_;

  std::vector<AttendedPairs> pairs_;  // by layer
  PrefillOutput output_;
};

}  // namespace overture::engine
