#include "engine/cpu_row_audit.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/status_macros.h"
#include "kernels/row_lse/row_lse_cpu.h"

namespace overture::engine {

CpuRowAudit::CpuRowAudit(const CpuWeights& weights, const PrefillJob& job)
    : weights_(weights),
      job_(job),
      q_row_bytes_(weights.q_size() * SizeOf(weights.dtype())) {
  if (job.audit_rows > 0) {
    audited_.q = AlignedBuffer(job.audit_rows * q_row_bytes_);
    layers_.resize(weights.config().num_layers);
  }
  if (job.observer != nullptr) {
    const absl::Span<const int64_t> rows = job.observer->rows();
    observed_.positions.assign(rows.begin(), rows.end());
    observed_.q =
        AlignedBuffer(static_cast<int64_t>(rows.size()) * q_row_bytes_);
  }
}

int64_t CpuRowAudit::WorkspaceBytes(const CpuWeights& weights,
                                    int64_t piece_rows) {
  const int64_t rows = std::min<int64_t>(piece_rows, kMaxAuditRows);
  return rows * weights.q_size() * SizeOf(weights.dtype()) +
         piece_rows * weights.config().num_q_heads * 4;
}

void CpuRowAudit::BeginLayer(int32_t layer, int64_t first_output_row) {
  layer_ = layer;
  if (job_.audit_rows == 0) return;
  audited_.positions =
      AuditRows(layer, first_output_row,
                static_cast<int64_t>(job_.tokens.size()), job_.audit_rows);
  plan_lse_.resize(audited_.positions.size() * weights_.config().num_q_heads);
}

void CpuRowAudit::Take(int64_t begin, int64_t end, const std::byte* q,
                       Copies* copies) {
  const IndexRange range = Within(copies->positions, begin, end);
  for (size_t i = range.begin; i < range.end; ++i) {
    std::memcpy(copies->q.data() + i * q_row_bytes_,
                q + (copies->positions[i] - begin) * q_row_bytes_,
                q_row_bytes_);
  }
}

void CpuRowAudit::TakeQueries(int64_t begin, int64_t end, const std::byte* q) {
  Take(begin, end, q, &audited_);
  Take(begin, end, q, &observed_);
}

float* CpuRowAudit::LseOf(int64_t begin, int64_t end) {
  const IndexRange range = Within(audited_.positions, begin, end);
  if (range.empty()) return nullptr;
  piece_lse_.resize((end - begin) * weights_.config().num_q_heads);
  return piece_lse_.data();
}

void CpuRowAudit::TakeLse(int64_t begin, int64_t end) {
  const int32_t num_heads = weights_.config().num_q_heads;
  const IndexRange range = Within(audited_.positions, begin, end);
  for (size_t i = range.begin; i < range.end; ++i) {
    for (int32_t head = 0; head < num_heads; ++head) {
      plan_lse_[i * num_heads + head] =
          piece_lse_[head * (end - begin) + audited_.positions[i] - begin];
    }
  }
}

absl::Status CpuRowAudit::EndLayer(const LayerKvView& kv) {
  if (job_.audit_rows > 0) {
    const ModelConfig& config = weights_.config();
    std::vector<float> exact(plan_lse_.size());
    OVERTURE_RETURN_IF_ERROR(kernels::RowLseCpu(
        {.dtype = weights_.dtype(),
         .q = audited_.q.data(),
         .k = kv.k,
         .stride_q_row = weights_.q_size(),
         .stride_q_head = config.head_dim,
         .stride_k_row = config.head_dim,
         .stride_k_head = kv.head_stride_bytes / SizeOf(weights_.dtype()),
         .num_q_heads = config.num_q_heads,
         .num_kv_heads = config.num_kv_heads,
         .head_dim = config.head_dim,
         .kv_len = kv.num_rows,
         .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
         .positions = audited_.positions,
         .lse = exact.data()}));
    layers_[layer_] = {audited_.positions, KeptMass(plan_lse_, exact)};
  }
  if (job_.observer != nullptr) {
    job_.observer->LayerObserved(layer_, observed_.view(), kv);
  }
  return absl::OkStatus();
}

}  // namespace overture::engine
