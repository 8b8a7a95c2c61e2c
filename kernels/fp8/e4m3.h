// The 8-bit float that Hopper multiplies (OCP 8-bit floating point, E4M3):
// sign, four bits of exponent with bias 7, three of mantissa. Largest value
// 448, smallest 2^-9, no infinity, one NaN a sign. Plain C++ header.
#pragma once

#include <bit>
#include <cstdint>

namespace overture::kernels {

inline constexpr float kE4M3Max = 448.0f;

// Conversion from float as the hardware's: to nearest even, saturating to
// kE4M3Max, NaN kept.
struct E4M3 {
  uint8_t bits = 0;

  E4M3() = default;
  explicit E4M3(float value) {
    const auto u = std::bit_cast<uint32_t>(value);
    bits = static_cast<uint8_t>(Magnitude(u & 0x7fffffffu) | (u >> 24 & 0x80u));
  }
  explicit operator float() const {
    const uint32_t magnitude = bits & 0x7fu;
    const float value = magnitude == 0x7fu ? std::bit_cast<float>(0x7fc00000u)
                        : magnitude < 8u
                            ? static_cast<float>(magnitude) * 0x1p-9f
                            : std::bit_cast<float>((magnitude << 20) + kRebias);
    return bits & 0x80u ? -value : value;
  }

 private:
  // From bias 7 to bias 127, in float's bits.
  static constexpr uint32_t kRebias = 120u << 23;

  // Of the bits of |value|, which order as the values do.
  static uint32_t Magnitude(uint32_t u) {
    if (u > 0x7f800000u) return 0x7fu;
    if (u >= std::bit_cast<uint32_t>(kE4M3Max)) return 0x7eu;
    if (u >= std::bit_cast<uint32_t>(0x1p-6f)) {
      return (u + 0x7ffffu + (u >> 20 & 1u) - kRebias) >> 20;
    }
    // Below the normal numbers steps are 2^-9, as those of float from 2^14 on:
    // the addition rounds.
    constexpr float kSteps = 0x1p14f;
    return std::bit_cast<uint32_t>(std::bit_cast<float>(u) + kSteps) -
           std::bit_cast<uint32_t>(kSteps);
  }
};
static_assert(sizeof(E4M3) == 1);

}  // namespace overture::kernels
