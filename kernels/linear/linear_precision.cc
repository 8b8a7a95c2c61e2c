#include "kernels/linear/linear_precision.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace overture::kernels {

absl::StatusOr<LinearPrecision> ParseLinearPrecision(absl::string_view text) {
  if (text == "bf16") return LinearPrecision::kBF16;
  if (text == "fp8") return LinearPrecision::kFp8;
  return absl::InvalidArgumentError(
      absl::StrCat("linears is ", text, ", must be bf16 or fp8"));
}

}  // namespace overture::kernels
