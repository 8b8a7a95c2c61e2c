// Element types of weight tensors on disk, GGML's block-quantised ones
// included. The values are GGUF's: do not renumber.
// Source: ggml-org/ggml:docs/gguf.md, `ggml_type`.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace overture::engine {

enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

// How a type is laid out: `num_elements` consecutive elements of a row take
// `num_bytes` bytes.
struct BlockShape {
  int64_t num_elements = 0;  // 0: the value is not one of TensorType
  int64_t num_bytes = 0;
};

constexpr BlockShape BlockShapeOf(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return {1, 4};
    case TensorType::kF16:
    case TensorType::kBF16:
      return {1, 2};
    case TensorType::kQ4_0:  // f16 scale, 32 x 4 bits
      return {32, 18};
    case TensorType::kQ4_1:  // f16 scale and minimum, 32 x 4 bits
      return {32, 20};
    case TensorType::kQ8_0:  // f16 scale, 32 x 8 bits
      return {32, 34};
    case TensorType::kQ4_K:  // 2 f16, 8 pairs of 6-bit factors, 256 x 4 bits
      return {256, 144};
    case TensorType::kQ5_K:  // the same with 256 more high bits
      return {256, 176};
    case TensorType::kQ6_K:  // 256 x 6 bits, 16 8-bit factors, f16
      return {256, 210};
  }
  return {0, 0};
}

constexpr bool IsSupportedTensorType(uint32_t value) {
  return BlockShapeOf(static_cast<TensorType>(value)).num_elements != 0;
}

// "Q4_1"; "unknown" for a value outside the enum.
absl::string_view Name(TensorType type);

// "F32, F16, BF16, ...": for error messages.
absl::string_view SupportedTensorTypes();

}  // namespace overture::engine
