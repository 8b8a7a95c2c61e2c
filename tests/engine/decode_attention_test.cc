#include "engine/decode_attention.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace overture::engine {
namespace {

struct Case {
  DType dtype;
  int64_t rows;
  int32_t group;
  int32_t head_dim;
};

class DecodeAttentionTest : public ::testing::TestWithParam<Case> {};

TEST_P(DecodeAttentionTest, PartsMergeToTheNaiveSoftmax) {
  const auto [dtype, rows, group, head_dim] = GetParam();
  std::mt19937 random(static_cast<uint32_t>(rows + head_dim));
  std::normal_distribution<float> normal;
  std::vector<float> q(group * head_dim);
  for (float& x : q) x = normal(random);
  std::vector<float> k(rows * head_dim);
  std::vector<float> v(rows * head_dim);
  std::vector<std::byte> k_bytes(k.size() * SizeOf(dtype));
  std::vector<std::byte> v_bytes(k_bytes.size());
  const auto fill = [&](std::vector<float>& values, std::byte* dst) {
    for (float& x : values) {
      x = normal(random);
      const BFloat16 rounded(x);
      if (dtype == DType::kBF16) x = static_cast<float>(rounded);
      std::memcpy(
          dst, dtype == DType::kBF16 ? static_cast<const void*>(&rounded) : &x,
          SizeOf(dtype));
      dst += SizeOf(dtype);
    }
  };
  fill(k, k_bytes.data());
  fill(v, v_bytes.data());

  const int64_t num_parts = (rows + kDecodePartRows - 1) / kDecodePartRows;
  std::vector<float> out(num_parts * group * head_dim);
  std::vector<float> max(num_parts * group);
  std::vector<float> sum(num_parts * group);
  for (int64_t p = 0; p < num_parts; ++p) {
    const int64_t begin = p * kDecodePartRows;
    const int64_t offset = begin * head_dim * SizeOf(dtype);
    AttendPart({.dtype = dtype,
                .q = q.data(),
                .k = k_bytes.data() + offset,
                .v = v_bytes.data() + offset,
                .num_rows = std::min(kDecodePartRows, rows - begin),
                .group = group,
                .head_dim = head_dim,
                .out = out.data() + p * group * head_dim,
                .max = max.data() + p * group,
                .sum = sum.data() + p * group});
  }
  for (int32_t g = 0; g < group; ++g) {
    std::vector<float> merged(head_dim);
    MergeParts(out.data() + g * head_dim, max.data() + g, sum.data() + g,
               num_parts, group * head_dim, group, head_dim, merged.data());
    std::vector<double> weights(rows);
    double total = 0;
    for (int64_t row = 0; row < rows; ++row) {
      double dot = 0;
      for (int32_t i = 0; i < head_dim; ++i) {
        dot += double{q[g * head_dim + i]} * k[row * head_dim + i];
      }
      total += weights[row] = std::exp(dot);
    }
    for (int32_t i = 0; i < head_dim; ++i) {
      double expected = 0;
      for (int64_t row = 0; row < rows; ++row) {
        expected += weights[row] / total * v[row * head_dim + i];
      }
      // A score sums head_dim products of order 1, up to 40 in all: off by
      // 40 * 2^-24 * sqrt(head_dim) = 3e-5; its weight by as much.
      EXPECT_NEAR(merged[i], expected, 1e-4) << g << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DecodeAttentionTest,
                         ::testing::Values(Case{DType::kF32, 1, 1, 64},
                                           Case{DType::kF32, 511, 3, 64},
                                           Case{DType::kF32, 1300, 2, 20},
                                           Case{DType::kBF16, 1, 4, 128},
                                           Case{DType::kBF16, 513, 3, 64},
                                           Case{DType::kBF16, 100, 2, 6}));

TEST(DecodeAttentionMergeTest, HugeScoresDoNotOverflow) {
  const float outs[] = {2.0f, 6.0f};
  const float maxes[] = {1000.0f, 1000.0f};
  const float sums[] = {1.0f, 3.0f};
  float out = 0;
  MergeParts(outs, maxes, sums, 2, 1, 1, 1, &out);
  EXPECT_EQ(out, 2.0f);
}

}  // namespace
}  // namespace overture::engine
