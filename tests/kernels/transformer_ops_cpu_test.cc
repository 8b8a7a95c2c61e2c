#include "kernels/transformer_ops/transformer_ops_cpu.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/simd/simd.h"

namespace overture::kernels {
namespace {

std::vector<float> Normal(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

double Get(const std::vector<float>& v, int64_t i) { return v[i]; }
double Get(const std::vector<BFloat16>& v, int64_t i) { return float(v[i]); }

DType TypeOf(const std::vector<float>&) { return DType::kF32; }
DType TypeOf(const std::vector<BFloat16>&) { return DType::kBF16; }

// Half a unit of the last place of the type, relative.
double Rounding(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-8 : 0x1p-24;
}

TEST(Exp2, StaysWithinItsBound) {
  std::vector<float> xs;
  for (double x = -126; x <= 127; x += 0.00321) xs.push_back(float(x));
  while (xs.size() % simd::kLanes != 0) xs.push_back(0);
  std::vector<float> ys(xs.size());
  for (size_t i = 0; i < xs.size(); i += simd::kLanes) {
    simd::Store(&ys[i], simd::Exp2(simd::Load(&xs[i])));
  }
  for (size_t i = 0; i < xs.size(); ++i) {
    const double exact = std::exp2(double{xs[i]});
    ASSERT_NEAR(ys[i] / exact, 1.0, 2.1e-7) << xs[i];
  }
}

TEST(Exp2, IsZeroFarBelowAndKeepsNan) {
  const float inf = std::numeric_limits<float>::infinity();
  float x[simd::kLanes] = {-inf, -126.5f, -1000.f, std::nanf(""), 0.f, 1.f};
  simd::Store(x, simd::Exp2(simd::Load(x)));
  EXPECT_EQ(x[0], 0.f);
  EXPECT_EQ(x[1], 0.f);
  EXPECT_EQ(x[2], 0.f);
  EXPECT_TRUE(std::isnan(x[3]));
  EXPECT_EQ(x[4], 1.f);
  EXPECT_NEAR(x[5], 2.f, 4e-7f);
}

TEST(SimdStore, RoundsToBf16AsTheScalarTypeDoes) {
  std::vector<float> values = Normal(4096, 1);
  const float inf = std::numeric_limits<float>::infinity();
  for (float v : {0.f, -0.f, inf, -inf, std::nanf(""), -std::nanf(""),
                  1.f + 0x1p-8f, 1.f + 0x3p-8f, 3.3895e38f, 1e-40f, -1e-45f}) {
    values.push_back(v);
  }
  while (values.size() % simd::kLanes != 0) values.push_back(0);
  std::vector<BFloat16> stored(values.size());
  for (size_t i = 0; i < values.size(); i += simd::kLanes) {
    simd::Store(&stored[i], simd::Load(&values[i]));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(stored[i].bits, BFloat16(values[i]).bits) << values[i];
  }
}

template <typename Out>
void CheckRmsNorm(int64_t rows, int64_t columns) {
  const std::vector<float> x = Normal(rows * columns, 2);
  const std::vector<float> w = Normal(columns, 3);
  constexpr double kEps = 1e-5;
  std::vector<Out> out(x.size());
  RmsNormCpu(x.data(), w.data(), kEps, rows, columns, TypeOf(out), out.data());
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < columns; ++i) {
      sum += double{x[r * columns + i]} * x[r * columns + i];
    }
    const double scale = 1.0 / std::sqrt(sum / columns + kEps);
    for (int64_t i = 0; i < columns; ++i) {
      const double exact = x[r * columns + i] * scale * w[i];
      // The sum of squares has at most columns roundings, halved by the root;
      // the scale and the two products add three, the output one.
      const double bound =
          (0.5 * columns + 3) * 0x1p-24 + Rounding(TypeOf(out));
      ASSERT_NEAR(Get(out, r * columns + i), exact, bound * std::abs(exact))
          << "row " << r << " column " << i;
    }
  }
}

TEST(RmsNorm, EqualsTheDoubleLoop) {
  for (int64_t columns : {1, 15, 64, 576}) {
    CheckRmsNorm<float>(3, columns);
    CheckRmsNorm<BFloat16>(3, columns);
  }
  CheckRmsNorm<BFloat16>(200, 576);  // enough for the parallel path
}

template <typename In, typename Out>
void CheckSwiGlu(int64_t rows, int64_t columns) {
  std::vector<In> in;
  for (float v : Normal(rows * 2 * columns, 4)) in.push_back(In(v * 20));
  std::vector<Out> out(rows * columns);
  SwiGluCpu(in.data(), TypeOf(in), rows, columns, TypeOf(out), out.data());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < columns; ++i) {
      const double gate = Get(in, r * 2 * columns + i);
      const double up = Get(in, r * 2 * columns + columns + i);
      const double exact = gate / (1 + std::exp(-gate)) * up;
      // exp's argument g log2(e) is rounded twice (the constant, the product),
      // which 2^x turns into |g| 2^-23 relative; 2^x itself, the sum, the
      // quotient and the product add 2.1e-7 + 3 roundings.
      const double bound = std::abs(gate) * 0x1p-23 + 2.1e-7 + 3 * 0x1p-24 +
                           Rounding(TypeOf(out));
      ASSERT_NEAR(Get(out, r * columns + i), exact,
                  bound * std::abs(exact) + 1e-30)
          << "gate " << gate << " up " << up;
    }
  }
}

TEST(SwiGlu, EqualsTheDoubleLoop) {
  for (int64_t columns : {1, 17, 64, 1536}) {
    CheckSwiGlu<float, float>(3, columns);
    CheckSwiGlu<float, BFloat16>(3, columns);
    CheckSwiGlu<BFloat16, float>(3, columns);
    CheckSwiGlu<BFloat16, BFloat16>(3, columns);
  }
  CheckSwiGlu<float, BFloat16>(50, 1536);  // enough for the parallel path
}

TEST(SwiGlu, ExtremeGatesNeitherOverflowNorVanishIntoNan) {
  const std::vector<float> in = {1e4f, -1e4f, -88.f, -0.f, 1, 1, 1, 1};
  std::vector<float> out(4);
  SwiGluCpu(in.data(), DType::kF32, 1, 4, DType::kF32, out.data());
  EXPECT_EQ(out[0], 1e4f);
  EXPECT_NEAR(out[1], 0.f, 1e-33f);
  EXPECT_NEAR(out[2], 0.f, 1e-35f);
  EXPECT_EQ(out[3], 0.f);
}

TEST(Add, AddsEveryElementOnce) {
  for (int64_t count : {0, 1, 15, 4096, 4097, 100000}) {
    std::vector<float> x = Normal(count, 5);
    const std::vector<float> before = x;
    const std::vector<float> y = Normal(count, 6);
    AddCpu(x.data(), y.data(), count);
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(x[i], before[i] + y[i]) << i;
  }
}

RopeTable Table(int32_t head_dim, double theta) {
  RopeTable table;
  for (int32_t i = 0; i < head_dim / 2; ++i) {
    table.inv_freq.push_back(std::pow(theta, -2.0 * i / head_dim));
  }
  return table;
}

// Rotates [rows, heads, head_dim] into [heads, rows, head_dim].
template <typename Out>
std::vector<Out> Rotate(const RopeTable& table, const float* x, int64_t rows,
                        int32_t heads, int32_t head_dim, int64_t position) {
  std::vector<Out> out(rows * heads * head_dim);
  RopeCpu(table, {.x = x,
                  .stride_x_row = heads * head_dim,
                  .stride_x_head = head_dim,
                  .out = out.data(),
                  .stride_out_row = head_dim,
                  .stride_out_head = rows * head_dim,
                  .dtype = TypeOf(out),
                  .rows = rows,
                  .num_heads = heads,
                  .head_dim = head_dim,
                  .position_begin = position});
  return out;
}

template <typename Out>
void CheckRope(int64_t rows, int32_t heads, int32_t head_dim,
               int64_t position) {
  const RopeTable table = Table(head_dim, 100000.0);
  const std::vector<float> x = Normal(rows * heads * head_dim, 7);
  const std::vector<Out> out =
      Rotate<Out>(table, x.data(), rows, heads, head_dim, position);
  const int32_t half = head_dim / 2;
  for (int64_t r = 0; r < rows; ++r) {
    for (int32_t h = 0; h < heads; ++h) {
      for (int32_t i = 0; i < half; ++i) {
        const double angle = double(position + r) * table.inv_freq[i];
        const double a = x[(r * heads + h) * head_dim + i];
        const double b = x[(r * heads + h) * head_dim + half + i];
        const double first = a * std::cos(angle) - b * std::sin(angle);
        const double second = b * std::cos(angle) + a * std::sin(angle);
        // Cosine, sine, two products and a sum are rounded to fp32, each by at
        // most half a unit of |a| + |b|; the angle is exact to position *
        // 2^-53, below 1e-9 at a million.
        const double size = std::abs(a) + std::abs(b);
        const double bound = 4 * 0x1p-24 * size + 1e-9 * size;
        const Out* row = &out[(h * rows + r) * head_dim];
        const double first_out = float(row[i]);
        const double second_out = float(row[half + i]);
        const double rounding = Rounding(TypeOf(out));
        ASSERT_NEAR(first_out, first, bound + rounding * std::abs(first));
        ASSERT_NEAR(second_out, second, bound + rounding * std::abs(second));
      }
    }
  }
}

TEST(Rope, EqualsTheDoubleLoop) {
  CheckRope<float>(1, 1, 2, 0);
  CheckRope<float>(130, 3, 64, 0);
  CheckRope<float>(65, 2, 96, 1000003);  // a million positions stay exact
  CheckRope<BFloat16>(70, 3, 128, 63);
  CheckRope<BFloat16>(300, 9, 64, 12345);  // enough for the parallel path
}

TEST(Rope, ARowDoesNotDependOnWhereTheRangeStarts) {
  constexpr int32_t kHeads = 2;
  constexpr int32_t kDim = 64;
  const RopeTable table = Table(kDim, 10000.0);
  const std::vector<float> x = Normal(200 * kHeads * kDim, 8);
  const auto all = Rotate<float>(table, x.data(), 200, kHeads, kDim, 50);
  for (int64_t row : {0, 13, 14, 77, 78, 199}) {
    const auto one = Rotate<float>(table, x.data() + row * kHeads * kDim, 1,
                                   kHeads, kDim, 50 + row);
    for (int32_t h = 0; h < kHeads; ++h) {
      EXPECT_EQ(std::memcmp(&one[h * kDim], &all[(h * 200 + row) * kDim],
                            kDim * sizeof(float)),
                0)
          << "row " << row << " head " << h;
    }
  }
}

TEST(CastHeads, MovesRowsToHeadsAndRounds) {
  constexpr int64_t kRows = 5;
  constexpr int32_t kHeads = 3;
  constexpr int32_t kDim = 24;
  constexpr int64_t kRowsOfCache = 8;
  const std::vector<float> x = Normal(kRows * kHeads * kDim, 9);
  std::vector<BFloat16> out(kHeads * kRowsOfCache * kDim);
  CastHeadsCpu({.x = x.data(),
                .stride_x_row = kHeads * kDim,
                .stride_x_head = kDim,
                .out = out.data(),
                .stride_out_row = kDim,
                .stride_out_head = kRowsOfCache * kDim,
                .dtype = DType::kBF16,
                .rows = kRows,
                .num_heads = kHeads,
                .head_dim = kDim});
  for (int64_t r = 0; r < kRowsOfCache; ++r) {
    for (int32_t h = 0; h < kHeads; ++h) {
      for (int32_t i = 0; i < kDim; ++i) {
        const BFloat16 expected =
            r < kRows ? BFloat16(x[(r * kHeads + h) * kDim + i]) : BFloat16();
        EXPECT_EQ(out[(h * kRowsOfCache + r) * kDim + i].bits, expected.bits);
      }
    }
  }
}

}  // namespace
}  // namespace overture::kernels
