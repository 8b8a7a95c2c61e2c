// The order in which selectors rank scores, the same on CPU and GPU (nvcc
// --expt-relaxed-constexpr).
#pragma once

#include <cstdint>

namespace overture::kernels {

// Of a float's bits. Orders as the float does, NaN below all: one integer
// compare ranks a score, and no comparison a NaN could make inconsistent.
constexpr uint32_t OrderedBits(uint32_t bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0;
  if ((bits & 0x7fffffffu) == 0) return 0x80000000u;  // -0 ties with +0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace overture::kernels
