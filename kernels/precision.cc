#include "kernels/precision.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace overture::kernels {
namespace {

template <typename Precision>
absl::StatusOr<Precision> Parse(absl::string_view what,
                                absl::string_view text) {
  if (text == "bf16") return Precision::kBF16;
  if (text == "fp8") return Precision::kFp8;
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", text, ", must be bf16 or fp8"));
}

}  // namespace

absl::StatusOr<LinearPrecision> ParseLinearPrecision(absl::string_view text) {
  return Parse<LinearPrecision>("linears", text);
}

absl::StatusOr<AttentionPrecision> ParseAttentionPrecision(
    absl::string_view text) {
  return Parse<AttentionPrecision>("attention", text);
}

}  // namespace overture::kernels
