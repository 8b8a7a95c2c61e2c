#include "kernels/sparse_attention/softmax_rows.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/fp8/e4m3.h"

namespace overture::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kScaleLog2 = 0.18f;

std::vector<float> Scores(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 8);
  std::vector<float> scores(count);
  for (float& score : scores) score = normal(random);
  return scores;
}

TEST(SoftmaxRows, TwoChunksGiveTheWeightsOfTheWhole) {
  for (int64_t first : {16, 48, 512}) {
    const std::vector<float> scores = Scores(first + 64, 1);
    SoftmaxRow row = {-kInf, 0.0f};
    std::vector<float> p(scores.size());
    UpdateRow(scores.data(), first, kScaleLog2, row, p.data());
    const float factor =
        UpdateRow(scores.data() + first, 64, kScaleLog2, row, p.data() + first);
    double max = -kInf;
    for (float s : scores) max = std::max(max, double{s} * kScaleLog2);
    double sum = 0;
    for (float s : scores) sum += std::exp2(double{s} * kScaleLog2 - max);
    // Exponents stay below 10, so each is off by at most 3 roundings of 10; 2^x
    // adds its own error and the sum one rounding per 32 scores.
    constexpr double kTolerance = 3 * 10 * 0x1p-24 + 2.1e-7 + 32 * 0x1p-24;
    EXPECT_NEAR(row.sum / (sum * std::exp2(max - row.max)), 1.0, kTolerance);
    for (size_t i = 0; i < scores.size(); ++i) {
      const double weight = p[i] * (i < size_t(first) ? double{factor} : 1.0);
      const double exact = std::exp2(double{scores[i]} * kScaleLog2 - row.max);
      EXPECT_NEAR(weight / exact, 1.0, kTolerance) << i;
    }
  }
}

TEST(SoftmaxRows, MaskedScoresWeighExactlyNothing) {
  std::vector<float> scores = Scores(32, 2);
  for (int i = 5; i < 32; ++i) scores[i] = -kInf;
  SoftmaxRow row = {-kInf, 0.0f};
  std::vector<BFloat16> p(32);
  EXPECT_EQ(UpdateRow(scores.data(), 32, kScaleLog2, row, p.data()), 0.0f);
  for (int i = 5; i < 32; ++i) EXPECT_EQ(p[i].bits, 0) << i;
  EXPECT_GE(row.sum, 1.0f);
}

TEST(SoftmaxRows, ARowOfMaskedScoresStaysEmpty) {
  const std::vector<float> scores(64, -kInf);
  SoftmaxRow row = {-kInf, 0.0f};
  std::vector<float> p(64, -1.0f);
  EXPECT_EQ(UpdateRow(scores.data(), 64, kScaleLog2, row, p.data()), 1.0f);
  EXPECT_EQ(row.max, -kInf);
  EXPECT_EQ(row.sum, 0.0f);
  for (float weight : p) EXPECT_EQ(weight, 0.0f);
}

TEST(SoftmaxRows, AMaskedChunkLeavesTheRowAsItWas) {
  const std::vector<float> masked(16, -kInf);
  SoftmaxRow row = {3.0f, 2.0f};
  std::vector<float> p(16);
  EXPECT_EQ(UpdateRow(masked.data(), 16, kScaleLog2, row, p.data()), 1.0f);
  EXPECT_EQ(row.max, 3.0f);
  EXPECT_EQ(row.sum, 2.0f);
}

TEST(SoftmaxRows, NanMakesTheSumNan) {
  for (int at : {0, 15, 40, 63}) {
    std::vector<float> scores = Scores(64, 3);
    scores[at] = std::nanf("");
    SoftmaxRow row = {-kInf, 0.0f};
    std::vector<float> p(64);
    UpdateRow(scores.data(), 64, kScaleLog2, row, p.data());
    EXPECT_TRUE(std::isnan(row.sum)) << at;
    row = {-kInf, 0.0f};
    UpdateRowE4M3(scores.data(), 64, kScaleLog2, row, p.data());
    EXPECT_TRUE(std::isnan(row.sum)) << at;
  }
}

TEST(SoftmaxRows, E4M3WeightsAreCodesAndSoIsTheirSum) {
  std::vector<float> scores = Scores(528, 5);
  scores[20] = 29;  // moves the reference
  constexpr float kScale = 5 * kScaleLog2;
  SoftmaxRow row = {-kInf, 0.0f};
  std::vector<float> p(scores.size());
  EXPECT_EQ(UpdateRowE4M3(scores.data(), 16, kScale, row, p.data()), 0.0f);
  const float factor =
      UpdateRowE4M3(scores.data() + 16, 512, kScale, row, p.data() + 16);
  float top = -kInf;
  for (float s : scores) top = std::max(top, s * kScale);
  EXPECT_EQ(row.max, std::rint(top));
  EXPECT_LT(factor, 1.0f);
  float sum = 0;
  int subnormal = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (i < 16) p[i] *= factor;
    sum += p[i];
    const float exact = 32 * std::exp2(scores[i] * kScale - row.max);
    if (i < 16 && exact < 0x1p-5f) continue;  // a code of another reference
    // Exponents of up to 32 are rounded twice, to 2^-20: beside a border
    // between two codes either is right.
    const float code = 32 * p[i];
    EXPECT_TRUE(code == float(E4M3(exact * (1 + 0x1p-18f))) ||
                code == float(E4M3(exact * (1 - 0x1p-18f))))
        << exact << " " << code;
    subnormal += code > 0 && code < 0x1p-6f;
  }
  EXPECT_GT(subnormal, 0);
  EXPECT_EQ(row.sum, sum);  // of few bits each: exact
}

TEST(SoftmaxRows, ScaleAndFinishMultiplyEveryElement) {
  std::vector<float> x = Scores(48, 4);
  const std::vector<float> before = x;
  ScaleRow(x.data(), 48, 0.7f);
  std::vector<float> f32(48);
  std::vector<BFloat16> bf16(48);
  FinishRow(before.data(), 48, 0.7f, f32.data());
  FinishRow(before.data(), 48, 0.7f, bf16.data());
  for (int i = 0; i < 48; ++i) {
    EXPECT_EQ(x[i], before[i] * 0.7f);
    EXPECT_EQ(f32[i], before[i] * 0.7f);
    EXPECT_EQ(bf16[i].bits, BFloat16(before[i] * 0.7f).bits);
  }
}

}  // namespace
}  // namespace overture::kernels
