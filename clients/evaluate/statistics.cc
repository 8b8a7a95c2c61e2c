#include "clients/evaluate/statistics.h"

#include <algorithm>
#include <cmath>

namespace overture::clients {

Interval WilsonInterval(int64_t hits, int64_t n) {
  if (n == 0) return {};
  constexpr double kZ = 1.959963984540054;  // 97.5% of a normal lie below
  const auto count = static_cast<double>(n);
  const double share = static_cast<double>(hits) / count;
  const double scale = 1 + kZ * kZ / count;
  const double middle = (share + kZ * kZ / (2 * count)) / scale;
  const double half =
      kZ / scale *
      std::sqrt(share * (1 - share) / count + kZ * kZ / (4 * count * count));
  return {.low = std::max(0.0, middle - half),
          .high = std::min(1.0, middle + half)};
}

double McNemarP(int64_t lost, int64_t won) {
  const int64_t n = lost + won;
  double p = 0;
  for (int64_t i = 0; i <= std::min(lost, won); ++i) {
    const auto choose = [n](int64_t k) {
      return std::lgamma(n + 1.0) - std::lgamma(k + 1.0) -
             std::lgamma(static_cast<double>(n - k) + 1.0);
    };
    p += std::exp(choose(i) - static_cast<double>(n) * std::log(2.0));
  }
  return std::min(1.0, 2 * p);
}

}  // namespace overture::clients
