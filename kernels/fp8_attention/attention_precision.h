// What attention multiplies; sums and the residual stream do not change.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace overture::kernels {

enum class AttentionPrecision : uint8_t {
  kBF16,  // q, k, v and probabilities of the compute dtype
  kFp8,   // e4m3: fp8_attention.h
};

// "bf16" or "fp8"; INVALID_ARGUMENT names the text and these.
absl::StatusOr<AttentionPrecision> ParseAttentionPrecision(
    absl::string_view text);

}  // namespace overture::kernels
