#include "kernels/linear/linear_cpu.h"

#include <omp.h>

#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

// Rounds to `dtype` and back.
float Round(float value, DType dtype) {
  return dtype == DType::kBF16 ? float(BFloat16(value)) : value;
}

// A matrix in f32, whose values `dtype` can hold, and its bytes in `dtype`.
struct Matrix {
  Matrix(int64_t rows, int64_t columns, DType dtype, uint32_t seed)
      : values(rows * columns) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& value : values) value = Round(normal(random), dtype);
    if (dtype == DType::kBF16) {
      for (float value : values) bf16.emplace_back(value);
    }
  }
  const void* data() const {
    return bf16.empty() ? static_cast<const void*>(values.data()) : bf16.data();
  }

  std::vector<float> values;
  std::vector<BFloat16> bf16;
};

std::vector<float> ApplyF32(const LinearCpu& linear, const void* x,
                            int64_t rows) {
  std::vector<float> y(rows * linear.out_features(), -1.f);
  OVERTURE_EXPECT_OK(linear.Apply(x, rows, y.data(), DType::kF32));
  return y;
}

using Shape = std::tuple<DType, int, int>;  // dtype, out, in

class LinearCpuTest : public ::testing::TestWithParam<Shape> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  int64_t out() const { return std::get<1>(GetParam()); }
  int64_t in() const { return std::get<2>(GetParam()); }
};

TEST_P(LinearCpuTest, EqualsTheSumInDouble) {
  constexpr int64_t kRows = 37;
  const Matrix w(out(), in(), dtype(), 1);
  const Matrix x(kRows, in(), dtype(), 2);
  const Matrix bias(1, out(), DType::kF32, 3);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto linear,
      LinearCpu::Create(dtype(), out(), in(), w.values, bias.values));
  const std::vector<float> y = ApplyF32(*linear, x.data(), kRows);

  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t o = 0; o < out(); ++o) {
      double sum = bias.values[o];
      double magnitude = std::abs(sum);
      for (int64_t i = 0; i < in(); ++i) {
        const double term =
            double(x.values[r * in() + i]) * double(w.values[o * in() + i]);
        sum += term;
        magnitude += std::abs(term);
      }
      // Inputs are exact, and so are products of two bf16 in fp32. Each of the
      // at most in + 1 additions and in products rounds by half a unit of the
      // running sum, which never exceeds `magnitude`, in any order.
      const double bound = (2.0 * in() + 1) * 0x1p-24 * magnitude;
      ASSERT_NEAR(y[r * out() + o], sum, bound) << "row " << r << " out " << o;
    }
  }
}

TEST_P(LinearCpuTest, ARowDoesNotDependOnTheNumberOfRows) {
  constexpr int64_t kRows = 1024 + 256 + 64 + 16 + 15;  // every chunk size
  const Matrix w(out(), in(), dtype(), 4);
  const Matrix x(kRows, in(), dtype(), 5);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto linear, LinearCpu::Create(dtype(), out(), in(), w.values, {}));
  const std::vector<float> all = ApplyF32(*linear, x.data(), kRows);
  for (int64_t rows : {1, 2, 3, 7, 15, 16, 17, 63, 64, 100, 256, 1023, 1024}) {
    const std::vector<float> some = ApplyF32(*linear, x.data(), rows);
    EXPECT_EQ(std::memcmp(some.data(), all.data(), some.size() * 4), 0)
        << rows << " rows";
  }
  // The last rows, one by one, sat in other chunks of `all`.
  for (int64_t row : {0, 1023, 1024, 1279, 1280, 1360, 1374}) {
    const auto* x_row =
        static_cast<const char*>(x.data()) + row * in() * SizeOf(dtype());
    const std::vector<float> one = ApplyF32(*linear, x_row, 1);
    EXPECT_EQ(std::memcmp(one.data(), all.data() + row * out(), one.size() * 4),
              0)
        << "row " << row;
  }
}

TEST_P(LinearCpuTest, ThreadsDoNotChangeTheResult) {
  constexpr int64_t kRows = 85;  // chunks of 64, 16 and 5
  const Matrix w(out(), in(), dtype(), 6);
  const Matrix x(kRows, in(), dtype(), 7);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto linear, LinearCpu::Create(dtype(), out(), in(), w.values, {}));
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const std::vector<float> one = ApplyF32(*linear, x.data(), kRows);
  const std::vector<float> single = ApplyF32(*linear, x.data(), 1);
  for (int threads : {2, 3, 16}) {
    omp_set_num_threads(threads);
    const std::vector<float> y = ApplyF32(*linear, x.data(), kRows);
    EXPECT_EQ(std::memcmp(y.data(), one.data(), y.size() * 4), 0) << threads;
    const std::vector<float> y1 = ApplyF32(*linear, x.data(), 1);
    EXPECT_EQ(std::memcmp(y1.data(), single.data(), y1.size() * 4), 0)
        << threads;
  }
  omp_set_num_threads(before);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, LinearCpuTest,
    ::testing::Values(Shape{DType::kF32, 96, 64}, Shape{DType::kBF16, 96, 64},
                      // SmolLM2-135M: QKV and the two halves of the MLP.
                      Shape{DType::kBF16, 960, 576},
                      Shape{DType::kBF16, 576, 1536},
                      Shape{DType::kF32, 576, 1536},
                      // Odd sizes, and one that a K split would tempt.
                      Shape{DType::kF32, 33, 7}, Shape{DType::kBF16, 33, 7},
                      Shape{DType::kF32, 1, 1}, Shape{DType::kBF16, 1, 1},
                      Shape{DType::kBF16, 64, 8192},
                      Shape{DType::kF32, 64, 8192}),
    [](const auto& info) {
      return std::string(Name(std::get<0>(info.param))) + "_" +
             std::to_string(std::get<1>(info.param)) + "x" +
             std::to_string(std::get<2>(info.param));
    });

TEST(LinearCpu, Bf16OutputIsTheRoundedF32Output) {
  const Matrix w(48, 80, DType::kBF16, 8);
  const Matrix x(20, 80, DType::kBF16, 9);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto linear, LinearCpu::Create(DType::kBF16, 48, 80, w.values, {}));
  const std::vector<float> y = ApplyF32(*linear, x.data(), 20);
  std::vector<BFloat16> y_bf16(y.size());
  OVERTURE_ASSERT_OK(linear->Apply(x.data(), 20, y_bf16.data(), DType::kBF16));
  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_EQ(y_bf16[i].bits, BFloat16(y[i]).bits) << i;
  }
}

TEST(LinearCpu, WeightsAreRoundedToBf16) {
  const std::vector<float> w = {1.0f + 0x1p-8f, 1.0f + 0x1.8p-7f};  // two ties
  const std::vector<BFloat16> x = {BFloat16(1.f)};
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto linear,
                                LinearCpu::Create(DType::kBF16, 2, 1, w, {}));
  EXPECT_THAT(ApplyF32(*linear, x.data(), 1),
              ::testing::ElementsAre(1.0f, 1.0f + 0x1p-6f));
}

TEST(LinearCpu, ManyThreadsMayShareOne) {
  const Matrix w(96, 128, DType::kBF16, 10);
  const Matrix x(70, 128, DType::kBF16, 11);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto linear, LinearCpu::Create(DType::kBF16, 96, 128, w.values, {}));
  const std::vector<float> expected = ApplyF32(*linear, x.data(), 70);
  // A fresh one, so that the threads race for its products as well.
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto shared, LinearCpu::Create(DType::kBF16, 96, 128, w.values, {}));
  std::vector<std::vector<float>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] {
      omp_set_num_threads(1);
      for (int i = 0; i < 50; ++i) result = ApplyF32(*shared, x.data(), 70);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST(LinearCpu, NoRowsIsNoWork) {
  const Matrix w(8, 8, DType::kF32, 12);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto linear, LinearCpu::Create(DType::kF32, 8, 8, w.values, {}));
  OVERTURE_EXPECT_OK(linear->Apply(nullptr, 0, nullptr, DType::kF32));
}

TEST(LinearCpu, RefusesWhatDoesNotFit) {
  const std::vector<float> w(12);
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(LinearCpu::Create(DType::kF32, 3, 5, w, {}),
              StatusIs(invalid, HasSubstr("weight has 12")));
  EXPECT_THAT(LinearCpu::Create(DType::kF32, 3, 4, w, {w.data(), 4}),
              StatusIs(invalid, HasSubstr("bias has 4")));
  EXPECT_THAT(LinearCpu::Create(DType::kF16, 3, 4, w, {}),
              StatusIs(invalid, HasSubstr("f16")));
  EXPECT_THAT(LinearCpu::Create(DType::kF32, 0, 4, {}, {}),
              StatusIs(invalid, HasSubstr("out_features is 0")));
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto linear,
                                LinearCpu::Create(DType::kF32, 3, 4, w, {}));
  std::vector<float> y(3);
  EXPECT_THAT(linear->Apply(w.data(), -1, y.data(), DType::kF32),
              StatusIs(invalid, HasSubstr("rows is -1")));
  EXPECT_THAT(linear->Apply(w.data(), 1, y.data(), DType::kBF16),
              StatusIs(invalid, HasSubstr("y_dtype is bf16")));
}

}  // namespace
}  // namespace overture::kernels
