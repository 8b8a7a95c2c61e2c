// How finely the order of work tells costs apart, the same on host and device
// (nvcc --expt-relaxed-constexpr).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace overture::kernels {

// A cost's first five binary digits, and how many follow: 6% apart, 0 .. 255,
// from 31 * 2^14 on the last. Items of one digit cost alike enough: an order by
// it keeps a launch's multiprocessors within 6% of the last, shortest items of
// each other, as an exact one would within those items themselves.
constexpr int32_t CostDigit(uint32_t cost) {
  const int32_t more =
      std::max(static_cast<int32_t>(std::bit_width(cost)) - 5, 0);
  return std::min<int32_t>(more * 16 + static_cast<int32_t>(cost >> more), 255);
}

}  // namespace overture::kernels
