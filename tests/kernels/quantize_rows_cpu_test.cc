#include "kernels/fp8/quantize_rows_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace overture::kernels {
namespace {

struct Quantized {
  std::vector<E4M3> codes;
  std::vector<float> scales;
};

Quantized Quantize(const std::vector<BFloat16>& x, int64_t rows) {
  const auto columns = static_cast<int64_t>(x.size()) / rows;
  Quantized q{std::vector<E4M3>(x.size()), std::vector<float>(rows)};
  QuantizeRowsCpu(x.data(), rows, columns, q.codes.data(), q.scales.data());
  return q;
}

TEST(QuantizeRowsCpuTest, AnElementIsOffByHalfAStep) {
  constexpr int64_t kRows = 300, kColumns = 133;  // enough to go parallel
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<BFloat16> x;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    // Rows of very different sizes.
    x.emplace_back(std::ldexp(normal(random), int(i / kColumns) % 60 - 30));
  }
  const Quantized q = Quantize(x, kRows);
  for (int64_t r = 0; r < kRows; ++r) {
    float largest = 0;
    for (int64_t i = 0; i < kColumns; ++i) {
      const float value = std::abs(float(x[r * kColumns + i]));
      largest = std::max(largest, value);
    }
    ASSERT_EQ(q.scales[r], largest / 448.0f);
    for (int64_t i = 0; i < kColumns; ++i) {
      const double value = float(x[r * kColumns + i]);
      const double back =
          double{float(q.codes[r * kColumns + i])} * double{q.scales[r]};
      // Half a step, and the rounding of the two fp32 quotients.
      const double bound =
          std::max(0x1p-4 * std::abs(value), 0x1p-10 * double{q.scales[r]});
      ASSERT_NEAR(back, value, bound * (1 + 0x1p-20)) << r << ", " << i;
    }
  }
}

TEST(QuantizeRowsCpuTest, TheLargestElementIs448) {
  const Quantized q =
      Quantize({BFloat16(0.5f), BFloat16(-3.0f), BFloat16(1.0f)}, 1);
  EXPECT_EQ(float(q.codes[1]), -448.0f);
  EXPECT_EQ(q.scales[0], 3.0f / 448.0f);
}

TEST(QuantizeRowsCpuTest, ZerosStayZerosWithAFiniteScale) {
  const Quantized q = Quantize(
      {BFloat16(0.0f), BFloat16(-0.0f), BFloat16(1e-38f), BFloat16(0.0f)}, 2);
  for (const E4M3 code : q.codes) EXPECT_EQ(float(code), 0.0f);
  for (const float scale : q.scales) {
    EXPECT_GT(scale, 0.0f);
    EXPECT_LT(scale, 1e-30f);
  }
}

TEST(QuantizeRowsCpuTest, ANonFiniteElementMakesItsRowsProductsNan) {
  for (const float bad : {float(NAN), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    const Quantized q =
        Quantize({BFloat16(1.0f), BFloat16(bad), BFloat16(2.0f), BFloat16(1.0f),
                  BFloat16(1.0f), BFloat16(2.0f)},
                 2);
    float sum = 0;
    for (int i = 0; i < 3; ++i) sum += float(q.codes[i]);
    EXPECT_TRUE(std::isnan(sum * q.scales[0])) << bad;
    EXPECT_EQ(float(q.codes[3]), 224.0f);  // the next row is as if alone
    EXPECT_EQ(q.scales[1], 2.0f / 448.0f);
  }
}

}  // namespace
}  // namespace overture::kernels
