// Exact attention of single rows, on the host, from what a RowObserver sees.
// Thread-safe: no state.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/kv_layout.h"
#include "engine/model_config.h"
#include "engine/row_audit.h"

namespace overture::engine {

// Softmax weights of the rows, at most kMaxAuditRows, for the query heads of
// one KV head: [rows, heads of its group, kv.num_rows], 0 past a row's
// position. Spreads keys over OpenMP threads. Errors: INTERNAL for our own
// bugs, RESOURCE_EXHAUSTED.
absl::Status WeightsOfRows(const ModelConfig& config, const KvLayout& layout,
                           const QueryRows& queries, const LayerKvView& kv,
                           int32_t kv_head, absl::Span<float> weights);

}  // namespace overture::engine
