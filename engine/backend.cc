#include "engine/backend.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace overture::engine {

int64_t ViewData::TotalBytes() const {
  int64_t bytes = 0;
  for (const std::vector<std::byte>& layer : layers) {
    bytes += static_cast<int64_t>(layer.size());
  }
  return bytes;
}

void ViewData::AppendLayer(const KvLayout& layout, const LayerKvView& kv,
                           absl::Span<const float> votes,
                           const compress::SnapKvOptions& options) {
  const int64_t n = kv.num_rows;
  std::vector<std::vector<int32_t>> positions(layout.num_kv_heads);
  int64_t num_rows = 0;
  for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
    if (votes.empty()) {
      positions[head].resize(n);
      std::iota(positions[head].begin(), positions[head].end(), 0);
    } else {
      positions[head] =
          compress::SnapKvPositions(votes.subspan(head * n, n), options);
    }
    num_rows += static_cast<int64_t>(positions[head].size());
  }
  const int64_t row_bytes = layout.HeadBytes(1);
  std::vector<std::byte> bytes(2 * num_rows * row_bytes);
  std::byte* dst = bytes.data();
  for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
    for (const std::byte* base : {kv.k, kv.v}) {
      const std::byte* rows = base + head * kv.head_stride_bytes;
      for (const int32_t position : positions[head]) {
        std::memcpy(dst, rows + position * row_bytes, row_bytes);
        dst += row_bytes;
      }
    }
  }
  plan.positions.push_back(std::move(positions));
  layers.push_back(std::move(bytes));
}

absl::string_view WeightsName(LinearPrecision linears,
                              absl::string_view dtype) {
  return linears == LinearPrecision::kFp8 ? "e4m3" : dtype;
}

bool NeedsVotes(const PrefillJob& job) {
  const int64_t n = static_cast<int64_t>(job.tokens.size());
  return job.view.has_value() && n > job.view->window && n > job.view->capacity;
}

absl::Status Validate(const PrefillJob& job, const ModelConfig& config) {
  const int64_t n = static_cast<int64_t>(job.tokens.size());
  if (n == 0 || job.num_cached < 0 || job.num_cached >= n ||
      job.io == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefill of ", n, " tokens with ", job.num_cached,
                     " cached, io ", job.io != nullptr));
  }
  for (int64_t i = 0; i < n; ++i) {
    if (job.tokens[i] < 0 || job.tokens[i] >= config.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens[", i, "] is ", job.tokens[i],
                       ", must be in [0, ", config.vocab_size, ")"));
    }
  }
  OVERTURE_RETURN_IF_ERROR(Validate(job.selector, config));
  OVERTURE_RETURN_IF_ERROR(CheckLength(job.selector, n));
  OVERTURE_RETURN_IF_ERROR(CheckAuditRows(job.audit_rows));
  if (job.observer != nullptr) {
    int64_t after = job.num_cached - 1;
    for (const int64_t row : job.observer->rows()) {
      if (row <= after || row >= n) {
        return absl::InvalidArgumentError(absl::StrCat(
            "an observed row is ", row, ", rows must ascend within [",
            job.num_cached, ", ", n, ")"));
      }
      after = row;
    }
  }
  if (!job.view.has_value()) return absl::OkStatus();
  OVERTURE_RETURN_IF_ERROR(compress::Validate(*job.view));
  if (job.num_cached > 0 && job.view->window > n - job.num_cached) {
    return absl::InvalidArgumentError(
        absl::StrCat("view.window is ", job.view->window, ", only ",
                     n - job.num_cached, " tokens are new"));
  }
  return absl::OkStatus();
}

absl::Status CheckSelector(const SelectorSpec& selector,
                           AttentionPrecision attention) {
  if (attention != AttentionPrecision::kFp8 ||
      selector.kind != SelectorSpec::Kind::kDynamic) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      "selector is vertical_slash, which attends to single columns; this "
      "server's attention is fp8, which runs dense and a_shape");
}

absl::Status AsInternal(const absl::Status& status) {
  if (status.ok() || status.code() == absl::StatusCode::kResourceExhausted) {
    return status;
  }
  return absl::InternalError(status.message());
}

void SetDensity(absl::Span<const AttendedPairs> layers, PrefillOutput* output) {
  const auto density = [](const AttendedPairs& pairs) {
    return pairs.causal > 0 ? pairs.computed / pairs.causal : 1.0;
  };
  AttendedPairs all;
  output->layer_density.clear();
  for (const AttendedPairs& layer : layers) {
    all.computed += layer.computed;
    all.causal += layer.causal;
    output->layer_density.push_back(density(layer));
  }
  output->density = density(all);
}

}  // namespace overture::engine
