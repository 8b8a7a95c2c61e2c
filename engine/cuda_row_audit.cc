#include "engine/cuda_row_audit.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>

#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/row_lse/row_lse.h"

namespace overture::engine {
namespace {

constexpr int64_t kElement = 2;  // bytes of bf16

int64_t QRowBytes(const ModelConfig& config) {
  return int64_t{config.num_q_heads} * config.head_dim * kElement;
}

int64_t NumNew(const PrefillJob& job) {
  return static_cast<int64_t>(job.tokens.size()) - job.num_cached;
}

int64_t NumObserved(const PrefillJob& job) {
  return job.observer == nullptr
             ? 0
             : static_cast<int64_t>(job.observer->rows().size());
}

}  // namespace

struct CudaRowAudit::Layout {
  MemoryRegion q;
  MemoryRegion piece_lse;
  MemoryRegion lse;
  MemoryRegion scratch;
  PartMemory memory;
  MemoryRegion host_lse;
  std::array<MemoryRegion, 2> host_q;
};

CudaRowAudit::Layout CudaRowAudit::LayoutOf(int32_t audit_rows,
                                            int64_t observed_rows,
                                            const ModelConfig& config,
                                            int64_t num_new) {
  Layout layout;
  MemoryCarver device;
  MemoryCarver pinned;
  if (audit_rows > 0) {
    const int64_t lse_bytes =
        int64_t{config.num_layers} * 2 * audit_rows * config.num_q_heads * 4;
    layout.q = device.Take(audit_rows * QRowBytes(config));
    layout.piece_lse =
        device.Take(config.num_q_heads * std::min(num_new, kCudaPlanRows) * 4);
    layout.lse = device.Take(lse_bytes);
    layout.scratch = device.Take(kernels::RowLseScratchBytes(
        audit_rows, config.num_q_heads, config.num_kv_heads));
    layout.host_lse = pinned.Take(lse_bytes);
  }
  for (MemoryRegion& region : layout.host_q) {
    region = pinned.Take(observed_rows * QRowBytes(config));
  }
  layout.memory = {.device_bytes = device.end(), .pinned_bytes = pinned.end()};
  return layout;
}

PartMemory CudaRowAudit::MemoryOf(const PrefillJob& job,
                                  const ModelConfig& config) {
  return LayoutOf(job.audit_rows, NumObserved(job), config, NumNew(job)).memory;
}

PartMemory CudaRowAudit::MostMemory(const ModelConfig& config,
                                    int64_t num_new) {
  return LayoutOf(kMaxAuditRows, 0, config, num_new).memory;
}

CudaRowAudit::CudaRowAudit(const PrefillJob& job, const ModelConfig& config,
                           const Resources& resources)
    : job_(job),
      config_(config),
      resources_(resources),
      q_row_bytes_(QRowBytes(config)) {
  if (job.observer != nullptr) observed_ = job.observer->rows();
  const Layout layout =
      LayoutOf(job.audit_rows, NumObserved(job), config, NumNew(job));
  for (size_t slot = 0; slot < host_q_.size(); ++slot) {
    host_q_[slot] = resources_.pinned + layout.host_q[slot].offset;
  }
  if (job.audit_rows == 0) return;
  q_ = resources_.device + layout.q.offset;
  const auto floats = [](std::byte* base, const MemoryRegion& region) {
    return reinterpret_cast<float*>(base + region.offset);
  };
  piece_lse_ = floats(resources_.device, layout.piece_lse);
  lse_ = floats(resources_.device, layout.lse);
  host_lse_ = floats(resources_.pinned, layout.host_lse);
  lse_bytes_ = layout.lse.bytes;
  scratch_ = resources_.device + layout.scratch.offset;
  scratch_bytes_ = layout.scratch.bytes;
  rows_.resize(config.num_layers);
}

void CudaRowAudit::BeginLayer(int32_t layer, int64_t first_output_row) {
  layer_ = layer;
  if (job_.audit_rows == 0) return;
  rows_[layer] =
      AuditRows(layer, first_output_row,
                static_cast<int64_t>(job_.tokens.size()), job_.audit_rows);
}

float* CudaRowAudit::LseOf(int64_t begin, int64_t end) const {
  if (job_.audit_rows == 0) return nullptr;
  return Within(rows_[layer_], begin, end).empty() ? nullptr : piece_lse_;
}

absl::Status CudaRowAudit::TakeAttended(const SegmentTensors& segment,
                                        int64_t begin, int64_t end) {
  if (job_.audit_rows == 0) return absl::OkStatus();
  const IndexRange taken = Within(rows_[layer_], begin, end);
  std::vector<int64_t> rows;
  for (size_t i = taken.begin; i < taken.end; ++i) {
    rows.push_back(rows_[layer_][i] - begin);
  }
  return AsInternal(kernels::LaunchTakeRows(
      {.q = segment.q + (begin - segment.begin) * q_row_bytes_,
       .lse = piece_lse_,
       .num_rows = end - begin,
       .row_elements = q_row_bytes_ / kElement,
       .num_q_heads = config_.num_q_heads,
       .rows = rows,
       .out_q = q_ + taken.begin * q_row_bytes_,
       .out_lse = lse_ + LseOffset(layer_) + taken.begin * config_.num_q_heads},
      resources_.stream.get()));
}

absl::Status CudaRowAudit::TakeObserved(const SegmentTensors& segment) {
  const IndexRange taken = Within(observed_, segment.begin, segment.end);
  for (size_t i = taken.begin; i < taken.end;) {
    // Neighbours in one copy.
    size_t end = i + 1;
    while (end < taken.end && observed_[end] == observed_[end - 1] + 1) ++end;
    OVERTURE_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(
            host_q_[layer_ % 2] + i * q_row_bytes_,
            segment.q + (observed_[i] - segment.begin) * q_row_bytes_,
            (end - i) * q_row_bytes_, cudaMemcpyDeviceToHost,
            resources_.stream.get()),
        "copying observed queries"));
    i = end;
  }
  return absl::OkStatus();
}

absl::Status CudaRowAudit::EndLayer(const std::byte* k) {
  if (job_.audit_rows == 0) return absl::OkStatus();
  const int64_t num_tokens = static_cast<int64_t>(job_.tokens.size());
  return AsInternal(kernels::LaunchRowLse(
      {.dtype = DType::kBF16,
       .q = q_,
       .k = k,
       .stride_q_row = q_row_bytes_ / kElement,
       .stride_q_head = config_.head_dim,
       .stride_k_row = config_.head_dim,
       .stride_k_head = num_tokens * config_.head_dim,
       .num_q_heads = config_.num_q_heads,
       .num_kv_heads = config_.num_kv_heads,
       .head_dim = config_.head_dim,
       .kv_len = num_tokens,
       .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
       .positions = rows_[layer_],
       .lse = lse_ + LseOffset(layer_) + LseCount()},
      scratch_, scratch_bytes_, resources_.stream.get()));
}

void CudaRowAudit::Observe(int32_t layer, const LayerKvView& kv) const {
  if (job_.observer == nullptr) return;
  job_.observer->LayerObserved(
      layer, {.positions = observed_, .q = host_q_[layer % 2]}, kv);
}

absl::Status CudaRowAudit::Fetch() {
  if (job_.audit_rows == 0) return absl::OkStatus();
  return CudaStatus(
      cudaMemcpyAsync(host_lse_, lse_, lse_bytes_, cudaMemcpyDeviceToHost,
                      resources_.stream.get()),
      "copying the audit");
}

std::vector<AuditedLayer> CudaRowAudit::Audited() const {
  std::vector<AuditedLayer> audited;
  for (size_t layer = 0; layer < rows_.size(); ++layer) {
    const size_t count = rows_[layer].size() * config_.num_q_heads;
    const float* plan = host_lse_ + LseOffset(static_cast<int32_t>(layer));
    audited.push_back(
        {rows_[layer], KeptMass({plan, count}, {plan + LseCount(), count})});
  }
  return audited;
}

}  // namespace overture::engine
