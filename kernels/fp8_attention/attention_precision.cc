#include "kernels/fp8_attention/attention_precision.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace overture::kernels {

absl::StatusOr<AttentionPrecision> ParseAttentionPrecision(
    absl::string_view text) {
  if (text == "bf16") return AttentionPrecision::kBF16;
  if (text == "fp8") return AttentionPrecision::kFp8;
  return absl::InvalidArgumentError(
      absl::StrCat("attention is ", text, ", must be bf16 or fp8"));
}

}  // namespace overture::kernels
