// What the products of a model multiply; sums and the residual stream are fp32
// either way.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace overture::kernels {

enum class LinearPrecision : uint8_t {
  kBF16,  // weights and activations of the compute dtype
  // e4m3: weights with a scale per output feature, activations with one per
  // row, chosen on the fly (fp8/quantize_rows_cpu.h). Half the weights' memory.
  kFp8,
};

enum class AttentionPrecision : uint8_t {
  kBF16,  // q, k, v and probabilities of the compute dtype
  kFp8,   // e4m3: fp8_attention/fp8_attention.h
};

// "bf16" or "fp8"; INVALID_ARGUMENT names the text and these.
absl::StatusOr<LinearPrecision> ParseLinearPrecision(absl::string_view text);
absl::StatusOr<AttentionPrecision> ParseAttentionPrecision(
    absl::string_view text);

}  // namespace overture::kernels
