#include "engine/attention_rows.h"

#include <cmath>
#include <vector>

#include "engine/backend.h"
#include "kernels/row_lse/row_lse_cpu.h"

namespace overture::engine {

absl::Status WeightsOfRows(const ModelConfig& config, const KvLayout& layout,
                           const QueryRows& queries, const LayerKvView& kv,
                           int32_t kv_head, absl::Span<float> weights) {
  const int32_t group = config.num_q_heads / config.num_kv_heads;
  const int64_t element = SizeOf(layout.dtype);
  std::vector<float> lse(queries.positions.size() * group);
  return AsInternal(kernels::RowLseCpu(
      {.dtype = layout.dtype,
       .q = queries.q + int64_t{kv_head} * group * config.head_dim * element,
       .k = kv.k + kv_head * kv.head_stride_bytes,
       .stride_q_row = int64_t{config.num_q_heads} * config.head_dim,
       .stride_q_head = config.head_dim,
       .stride_k_row = config.head_dim,
       .stride_k_head = kv.head_stride_bytes / element,
       .num_q_heads = group,
       .num_kv_heads = 1,
       .head_dim = config.head_dim,
       .kv_len = kv.num_rows,
       .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
       .positions = queries.positions,
       .lse = lse.data(),
       .weights = weights.data()}));
}

}  // namespace overture::engine
