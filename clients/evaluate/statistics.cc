#include "clients/evaluate/statistics.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace overture::clients {
namespace {

// 97.5% of Student's t lie below, by degrees of freedom from 1 on; beyond, two
// terms of its expansion are off by less than 0.001.
double StudentT(int64_t freedom) {
  constexpr double kTable[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365,
                               2.306,  2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
                               2.131,  2.120, 2.110, 2.101, 2.093, 2.086};
  if (freedom <= static_cast<int64_t>(std::size(kTable))) {
    return kTable[freedom - 1];
  }
  return 1.960 + 2.373 / static_cast<double>(freedom) +
         2.822 / static_cast<double>(freedom * freedom);
}

}  // namespace

double Mean(absl::Span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

Interval MeanInterval(absl::Span<const double> values) {
  const auto n = static_cast<int64_t>(values.size());
  if (n < 2) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    return {.low = -kInfinity, .high = kInfinity};
  }
  const double mean = Mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double half =
      StudentT(n - 1) * std::sqrt(squares / static_cast<double>(n * (n - 1)));
  return {.low = mean - half, .high = mean + half};
}

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
