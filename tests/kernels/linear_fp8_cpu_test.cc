#include "kernels/linear/linear_fp8_cpu.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/fp8/quantize_rows_cpu.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

std::vector<float> Random(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = float(BFloat16(normal(random)));
  return values;
}

std::vector<BFloat16> ToBf16(const std::vector<float>& values) {
  std::vector<BFloat16> rounded;
  for (const float value : values) rounded.emplace_back(value);
  return rounded;
}

// As doubles, decoded.
std::vector<double> Quantized(const std::vector<float>& x, int64_t rows) {
  const auto columns = static_cast<int64_t>(x.size()) / rows;
  std::vector<E4M3> codes(x.size());
  std::vector<float> scales(rows);
  QuantizeRowsCpu(ToBf16(x).data(), rows, columns, codes.data(), scales.data());
  std::vector<double> values;
  for (size_t i = 0; i < x.size(); ++i) {
    values.push_back(double{float(codes[i])} * double{scales[i / columns]});
  }
  return values;
}

class LinearFp8CpuTest : public ::testing::TestWithParam<DType> {};

TEST_P(LinearFp8CpuTest, EqualsTheSumOfQuantizedValuesInDouble) {
  constexpr int64_t kRows = 600, kOut = 33, kIn = 80;  // two pieces of rows
  const std::vector<float> w = Random(kOut * kIn, 1);
  const std::vector<float> x = Random(kRows * kIn, 2);
  const std::vector<float> bias = Random(kOut, 3);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto linear, CreateLinearFp8Cpu(GetParam(), kOut, kIn, w, bias));
  EXPECT_EQ(linear->in_features(), kIn);
  EXPECT_EQ(linear->out_features(), kOut);
  const std::vector<BFloat16> x_bf16 = ToBf16(x);
  const void* x_data = GetParam() == DType::kF32
                           ? static_cast<const void*>(x.data())
                           : x_bf16.data();
  std::vector<float> y(kRows * kOut);
  OVERTURE_ASSERT_OK(linear->Apply(x_data, kRows, y.data(), DType::kF32));

  const std::vector<double> wq = Quantized(w, kOut);
  const std::vector<double> xq = Quantized(x, kRows);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t o = 0; o < kOut; ++o) {
      double sum = bias[o];
      double magnitude = std::abs(sum);
      for (int64_t i = 0; i < kIn; ++i) {
        const double term = xq[r * kIn + i] * wq[o * kIn + i];
        sum += term;
        magnitude += std::abs(term);
      }
      // As in linear_cpu_test.cc, and three roundings of the scales.
      const double bound = (2.0 * kIn + 4) * 0x1p-24 * magnitude;
      ASSERT_NEAR(y[r * kOut + o], sum, bound) << "row " << r << " out " << o;
    }
  }

  std::vector<BFloat16> narrow(y.size());
  if (GetParam() == DType::kBF16) {
    OVERTURE_ASSERT_OK(
        linear->Apply(x_data, kRows, narrow.data(), DType::kBF16));
    EXPECT_EQ(std::memcmp(narrow.data(), ToBf16(y).data(), 2 * y.size()), 0);
  }
}

TEST_P(LinearFp8CpuTest, ARowDoesNotDependOnTheOthers) {
  constexpr int64_t kRows = 520, kOut = 64, kIn = 96;
  const std::vector<float> w = Random(kOut * kIn, 4);
  const std::vector<float> x = Random(kRows * kIn, 5);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto linear, CreateLinearFp8Cpu(GetParam(), kOut, kIn, w, {}));
  const std::vector<BFloat16> x_bf16 = ToBf16(x);
  const auto row = [&](int64_t r) {
    return GetParam() == DType::kF32
               ? static_cast<const void*>(x.data() + r * kIn)
               : x_bf16.data() + r * kIn;
  };
  std::vector<float> all(kRows * kOut);
  OVERTURE_ASSERT_OK(linear->Apply(row(0), kRows, all.data(), DType::kF32));
  for (const int64_t r : {0, 1, 63, 511, 512, 519}) {
    std::vector<float> one(kOut);
    OVERTURE_ASSERT_OK(linear->Apply(row(r), 1, one.data(), DType::kF32));
    EXPECT_EQ(std::memcmp(one.data(), all.data() + r * kOut, kOut * 4), 0) << r;
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, LinearFp8CpuTest,
                         ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) {
                           return std::string(Name(info.param));
                         });

TEST(LinearFp8Cpu, RefusesWhatDoesNotFit) {
  const std::vector<float> w(12);
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(CreateLinearFp8Cpu(DType::kF32, 3, 5, w, {}),
              StatusIs(invalid, HasSubstr("weight has 12")));
  EXPECT_THAT(CreateLinearFp8Cpu(DType::kF16, 3, 4, w, {}),
              StatusIs(invalid, HasSubstr("f16")));
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto linear,
                                CreateLinearFp8Cpu(DType::kF32, 3, 4, w, {}));
  std::vector<float> y(3);
  EXPECT_THAT(linear->Apply(w.data(), -1, y.data(), DType::kF32),
              StatusIs(invalid, HasSubstr("rows is -1")));
  EXPECT_THAT(linear->Apply(w.data(), 1, y.data(), DType::kBF16),
              StatusIs(invalid, HasSubstr("y_dtype is bf16")));
}

}  // namespace
}  // namespace overture::kernels
