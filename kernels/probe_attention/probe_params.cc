#include "kernels/probe_attention/probe_params.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace overture::kernels {

absl::Status BadProbeField(absl::string_view field, int64_t value,
                           absl::string_view limit) {
  return absl::InvalidArgumentError(absl::StrCat(
      "probe attention: ", field, " is ", value, ", must be ", limit));
}

absl::Status CheckProbeAttention(const ProbeAttentionParams& p) {
  if (p.dtype != DType::kF32 && p.dtype != DType::kBF16) {
    return BadProbeField("dtype", static_cast<int64_t>(p.dtype),
                         "kF32 or kBF16");
  }
  if (p.num_kv_heads < 1) {
    return BadProbeField("num_kv_heads", p.num_kv_heads, ">= 1");
  }
  if (p.num_q_heads < 1 || p.num_q_heads % p.num_kv_heads != 0) {
    return BadProbeField(
        "num_q_heads", p.num_q_heads,
        absl::StrCat("a positive multiple of num_kv_heads = ", p.num_kv_heads));
  }
  if (p.head_dim < 1) return BadProbeField("head_dim", p.head_dim, ">= 1");
  constexpr int64_t kMaxKv = std::numeric_limits<int32_t>::max();
  if (p.kv_len < 1 || p.kv_len > kMaxKv) {
    return BadProbeField("kv_len", p.kv_len, absl::StrCat("1 .. ", kMaxKv));
  }
  if (p.num_rows < 1 || p.num_rows > p.kv_len) {
    return BadProbeField("num_rows", p.num_rows,
                         absl::StrCat("1 .. kv_len = ", p.kv_len));
  }
  if (p.window_votes != nullptr &&
      (p.window_rows < 1 || p.window_rows > p.num_rows)) {
    return BadProbeField("window_rows", p.window_rows,
                         absl::StrCat("1 .. num_rows = ", p.num_rows));
  }
  if (p.q == nullptr) return BadProbeField("q", 0, "not null");
  if (p.k == nullptr) return BadProbeField("k", 0, "not null");
  if (!std::isfinite(p.scale)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "probe attention: scale is ", p.scale, ", must be finite"));
  }
  return absl::OkStatus();
}

}  // namespace overture::kernels
