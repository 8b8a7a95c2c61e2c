// What is looked at in single rows of a prefill: how much of its attention each
// head kept under a sparse plan (the audit), and the queries themselves, for
// tools that want to know why (RowObserver).
//
// The kept mass of a row and head is
//
//   exp(lse of the keys that the plan gave the row - lse of all causal keys),
//
// the share of the row's softmax weights that the plan computed: 1 for dense.
// Where the plan corrects dropped blocks by their means the first sum has the
// means' terms too, so that it says how much of the weight is accounted for:
// a mean's term is at most what the block's own keys have (Jensen), so it stays
// at most 1 and at least what the plan would keep without them. Under FP8
// attention the first sum is of quantised queries and keys, off by a few
// percent either way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/kv_layout.h"

namespace overture::engine {

// Most audited rows of a layer.
inline constexpr int32_t kMaxAuditRows = 64;

// The kept mass of some rows of a layer.
struct AuditedLayer {
  std::vector<int64_t> rows;  // positions, ascending
  std::vector<float> kept;    // [rows, query heads]
};

// INVALID_ARGUMENT naming value and limit unless 0 .. kMaxAuditRows.
absl::Status CheckAuditRows(int32_t audit_rows);

// Rows of [begin, end) to audit in `layer`, ascending: all of them, or `count`,
// one from each of as many equal stretches, by a fixed hash of layer and
// stretch. REQUIRES begin < end, count >= 1.
std::vector<int64_t> AuditRows(int32_t layer, int64_t begin, int64_t end,
                               int32_t count);

// Indices of the positions, which ascend, within [begin, end).
struct IndexRange {
  size_t begin = 0;
  size_t end = 0;
  bool empty() const { return begin == end; }
};
IndexRange Within(absl::Span<const int64_t> positions, int64_t begin,
                  int64_t end);

// exp(plan - exact), elementwise.
std::vector<float> KeptMass(absl::Span<const float> plan_lse,
                            absl::Span<const float> exact_lse);

// Mean over a layer's audited rows, per query head. REQUIRES a row.
std::vector<double> KeptMassOfHeads(const AuditedLayer& layer);

struct KeptMassSummary {
  double mean = 1;     // over layers, rows and heads
  double lowest = 1;   // of all heads, each the mean over its rows
  int32_t layer = -1;  // where that is; -1: nothing was audited
  int32_t head = -1;
  int64_t num_rows = 0;  // over all layers
};
KeptMassSummary Summarize(absl::Span<const AuditedLayer> layers);

// Rotated queries of some rows of a layer. View.
struct QueryRows {
  absl::Span<const int64_t> positions;  // ascending
  // [positions, num_q_heads, head_dim] in the KV's dtype; host.
  const std::byte* q = nullptr;
};

// Sees queries of a prefill beside the KV that they attended to. All calls come
// on the prefill's thread.
class RowObserver {
 public:
  virtual ~RowObserver() = default;
  // Positions among the prefill's new rows, ascending, the same in every layer.
  // Asked once, valid until the prefill ends.
  virtual absl::Span<const int64_t> rows() const = 0;
  // Right before PrefillIo::LayerDone, with the same `kv`. Both are valid
  // during the call.
  virtual void LayerObserved(int32_t layer, const QueryRows& queries,
                             const LayerKvView& kv) = 0;
};

}  // namespace overture::engine
