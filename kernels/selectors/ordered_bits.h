// The order in which selectors rank scores, the same on CPU and GPU (nvcc
// --expt-relaxed-constexpr).
#pragma once

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

}  // namespace overture::kernels
