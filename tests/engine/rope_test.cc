#include "engine/rope.h"

#include <utility>

#include "gtest/gtest.h"

namespace overture::engine {
namespace {

TEST(RopeTest, PlainFrequenciesArePowersOfTheta) {
  const auto f = RopeInverseFrequencies({.head_dim = 8, .rope_theta = 1e4});
  ASSERT_EQ(f.size(), 4u);
  EXPECT_DOUBLE_EQ(f[0], 1);
  EXPECT_DOUBLE_EQ(f[1], 0.1);
  EXPECT_DOUBLE_EQ(f[2], 0.01);
  EXPECT_DOUBLE_EQ(f[3], 0.001);
}

TEST(RopeTest, LinearScalingDividesAll) {
  const auto f = RopeInverseFrequencies(
      {.head_dim = 4,
       .rope_theta = 1e4,
       .rope_scaling = {.kind = RopeScaling::Kind::kLinear, .factor = 4}});
  EXPECT_DOUBLE_EQ(f[0], 0.25);
  EXPECT_DOUBLE_EQ(f[1], 0.0025);
}

TEST(RopeTest, Llama3ScalingEqualsTransformers) {
  // transformers `_compute_llama3_parameters` for Llama-3.1-8B: head dim 128,
  // theta 500000, factor 8, low 1, high 4, original 8192; computed there in
  // float, hence 1e-6 relative.
  const auto f = RopeInverseFrequencies(
      {.head_dim = 128,
       .rope_theta = 5e5,
       .rope_scaling = {.kind = RopeScaling::Kind::kLlama3,
                        .factor = 8,
                        .low_freq_factor = 1,
                        .high_freq_factor = 4,
                        .original_max_positions = 8192}});
  const std::pair<int, double> kExpected[] = {
      {0, 1},
      {1, 0.814617217},
      {20, 0.0165604409},
      {28, 0.00321144611},
      {30, 0.00137189368},
      {32, 0.000524846022},
      {33, 0.00031269365},
      {34, 0.000178507791},
      {36, 7.78465546e-05},
      {40, 3.42810235e-05},
      {50, 4.41153452e-06},
      {63, 3.06892588e-07},
  };
  for (const auto& [i, expected] : kExpected) {
    EXPECT_NEAR(f[i] / expected, 1, 1e-6) << i;
  }
}

}  // namespace
}  // namespace overture::engine
