#include "base/dtype.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace overture {

absl::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
  }
  return "invalid";
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  if (name == "f32") return DType::kF32;
  if (name == "f16") return DType::kF16;
  if (name == "bf16") return DType::kBF16;
  return absl::InvalidArgumentError(
      absl::StrCat("dtype \"", name, "\" is not one of f32, f16, bf16"));
}

Float16::Float16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t abs = u & 0x7fffffffu;
  if (abs > 0x7f800000u) {  // NaN
    bits = sign | 0x7e00u;
  } else if (abs >= 0x477ff000u) {  // rounds to 65536 or more
    bits = sign | 0x7c00u;
  } else if (abs < 0x38800000u) {
    // Subnormal half. Adding 0.5 makes the float's ulp 2^-24, the half's
    // smallest step, so the addition itself rounds to nearest even.
    const float shifted = std::bit_cast<float>(abs) + 0.5f;
    bits = sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) -
                                        0x3f000000u);
  } else {
    const uint32_t rounded = abs + 0xfffu + ((abs >> 13) & 1u);
    bits = sign | static_cast<uint16_t>((rounded - 0x38000000u) >> 13);
  }
}

Float16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exp = (bits >> 10) & 0x1fu;
  const uint32_t frac = bits & 0x3ffu;
  if (exp == 0x1f) {
    return std::bit_cast<float>(sign | 0x7f800000u | (frac << 13));
  }
  if (exp == 0) {
    const float magnitude = static_cast<float>(frac) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exp + 112) << 23) | (frac << 13));
}

}  // namespace overture
