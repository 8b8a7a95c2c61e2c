// Element types that cross folder borders: KV caches, weights, the wire.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace overture {

// Values are stored in KV records and sent on the wire: do not renumber.
enum class DType : uint8_t {
  kF32 = 1,
  kF16 = 2,
  kBF16 = 3,
};

// Bytes of one element.
constexpr int64_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// "f32", "f16", "bf16".
absl::string_view Name(DType dtype);

// INVALID_ARGUMENT names the text and the accepted ones.
absl::StatusOr<DType> ParseDType(absl::string_view name);

// True for a value of the enum; use on bytes that come from outside.
constexpr bool IsValidDType(uint32_t value) { return value >= 1 && value <= 3; }

// bfloat16 as 16 raw bits. Conversion from float rounds to nearest even and
// keeps NaN a NaN.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    bits = (u & 0x7fffffffu) > 0x7f800000u
               ? static_cast<uint16_t>((u >> 16) | 0x40u)
               : static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};
static_assert(sizeof(BFloat16) == 2);

// IEEE binary16 as 16 raw bits. Conversion from float rounds to nearest even,
// overflow becomes infinity.
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value);
  explicit operator float() const;
};
static_assert(sizeof(Float16) == 2);

}  // namespace overture
