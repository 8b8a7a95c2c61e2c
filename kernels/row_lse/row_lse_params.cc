#include "kernels/row_lse/row_lse_params.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace overture::kernels {

absl::Status BadRowLseField(absl::string_view field, int64_t value,
                            absl::string_view limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("row lse: ", field, " is ", value, ", must be ", limit));
}

absl::Status CheckRowLse(const RowLseParams& p) {
  if (p.dtype != DType::kF32 && p.dtype != DType::kBF16) {
    return BadRowLseField("dtype", static_cast<int64_t>(p.dtype),
                          "kF32 or kBF16");
  }
  if (p.num_kv_heads < 1) {
    return BadRowLseField("num_kv_heads", p.num_kv_heads, ">= 1");
  }
  if (p.num_q_heads < 1 || p.num_q_heads % p.num_kv_heads != 0) {
    return BadRowLseField(
        "num_q_heads", p.num_q_heads,
        absl::StrCat("a positive multiple of num_kv_heads = ", p.num_kv_heads));
  }
  if (p.head_dim < 1) return BadRowLseField("head_dim", p.head_dim, ">= 1");
  constexpr int64_t kMaxKv = std::numeric_limits<int32_t>::max();
  if (p.kv_len < 1 || p.kv_len > kMaxKv) {
    return BadRowLseField("kv_len", p.kv_len, absl::StrCat("1 .. ", kMaxKv));
  }
  if (p.positions.empty() || p.positions.size() > kMaxLseRows) {
    return BadRowLseField("rows", static_cast<int64_t>(p.positions.size()),
                          absl::StrCat("1 .. ", kMaxLseRows));
  }
  for (const int64_t position : p.positions) {
    if (position < 0 || position >= p.kv_len) {
      return BadRowLseField("a position", position,
                            absl::StrCat("in [0, kv_len = ", p.kv_len, ")"));
    }
  }
  if (p.q == nullptr) return BadRowLseField("q", 0, "not null");
  if (p.k == nullptr) return BadRowLseField("k", 0, "not null");
  if (p.lse == nullptr) return BadRowLseField("lse", 0, "not null");
  if (!std::isfinite(p.scale) || p.scale <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "row lse: scale is ", p.scale, ", must be finite and > 0"));
  }
  return absl::OkStatus();
}

}  // namespace overture::kernels
