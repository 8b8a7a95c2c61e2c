// The order in which selectors rank scores and what a score weighs, the same on
// CPU and GPU (nvcc --expt-relaxed-constexpr).
#pragma once

#include <bit>
#include <cstdint>

namespace overture::kernels {

// Of a float's bits. Orders as the float does, NaN below all: one integer
// compare ranks a score, and no comparison a NaN could make inconsistent. Never
// 0, which is left for what is no score at all.
constexpr uint32_t OrderedBits(uint32_t bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 1;
  const uint32_t flip = (bits >> 31) != 0 ? 0xffffffffu : 0x80000000u;
  return (bits ^ flip) + (bits == 0x80000000u);  // -0 ties with +0
}

// The float that has these, as far as it is above 0; 0 for all others.
constexpr float PositiveOfOrderedBits(uint32_t ordered) {
  return ordered > 0x80000000u ? std::bit_cast<float>(ordered ^ 0x80000000u)
                               : 0.0f;
}

// A probe's sum as a number whose additions commute: whole units of 2^-26,
// rounded down. A sum of probabilities over 64 rows is at most 64; up to 128
// counts, so that 2^31 of them fit. The units lost are at most 2^-6 of the 64
// that a probe's sums over a million keys add up to. 0 for NaN.
constexpr uint64_t ProbeWeight(float sum) {
  if (!(sum > 0)) return 0;
  return static_cast<uint64_t>((sum < 128.0f ? sum : 128.0f) * 0x1p26f);
}

// The weight that a mass asks for: one rounding, the same everywhere.
constexpr uint64_t WeightOfMass(float mass, uint64_t total) {
  return static_cast<uint64_t>(static_cast<double>(mass < 1 ? mass : 1) *
                               static_cast<double>(total));
}

}  // namespace overture::kernels
