#include "kernels/fp8_attention/fp8_attention_cpu.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/fp8/e4m3.h"
#include "kernels/selectors/static_plans.h"
#include "tests/support/naive_attention.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::ComputeNaiveAttention;
using ::overture::testing::NaiveAttention;

constexpr int32_t kQueryHeads = 4;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kDim = 64;
constexpr int64_t kRows = 200;
constexpr int64_t kKeys = 300;

struct Problem {
  std::vector<BFloat16> q, k, v, o;
  std::vector<float> lse;
  TilePlan plan;
  SparseAttentionParams params;
};

// `value(random)` draws each element.
template <typename Draw>
void Fill(const Draw& value, Problem* problem) {
  problem->plan = *DensePlan({.q_begin = kKeys - kRows,
                              .q_len = kRows,
                              .kv_len = kKeys,
                              .tile_rows = 128,
                              .tile_keys = 64});
  std::mt19937 random(1);
  for (auto* tensor : {&problem->q, &problem->k, &problem->v}) {
    tensor->resize(tensor == &problem->q ? kRows * kQueryHeads * kDim
                                         : kKvHeads * kKeys * kDim);
    for (BFloat16& x : *tensor) x = BFloat16(value(random));
  }
  problem->o.resize(problem->q.size());
  problem->lse.resize(kQueryHeads * kRows);
  problem->params = {.dtype = DType::kBF16,
                     .q = problem->q.data(),
                     .k = problem->k.data(),
                     .v = problem->v.data(),
                     .o = problem->o.data(),
                     .lse = problem->lse.data(),
                     .stride_q_row = kQueryHeads * kDim,
                     .stride_q_head = kDim,
                     .stride_kv_row = kDim,
                     .stride_kv_head = kKeys * kDim,
                     .stride_o_row = kQueryHeads * kDim,
                     .stride_o_head = kDim,
                     .num_q_heads = kQueryHeads,
                     .num_kv_heads = kKvHeads,
                     .head_dim = kDim,
                     // Scores in units of log2 are then q k / 8.
                     .scale = 0.125f * static_cast<float>(M_LN2),
                     .plan = &problem->plan};
}

float Normal(std::mt19937& random) {
  return std::normal_distribution<float>()(random);
}

// Relative error, over all outputs, of the attention against the exact one.
double ErrorOf(const Problem& problem) {
  const NaiveAttention naive = ComputeNaiveAttention(problem.params);
  double error = 0, norm = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int32_t head = 0; head < kQueryHeads; ++head) {
      for (int32_t d = 0; d < kDim; ++d) {
        const double exact = naive.o[(head * kRows + row) * kDim + d];
        const float actual(
            problem.o[row * kQueryHeads * kDim + head * kDim + d]);
        error += (actual - exact) * (actual - exact);
        norm += exact * exact;
      }
    }
  }
  return std::sqrt(error / norm);
}

TEST(Fp8AttentionCpuTest, WhatE4M3HoldsIsExact) {
  Problem problem;
  Fill(
      [](std::mt19937& random) {
        return static_cast<float>(static_cast<int>(random() % 9) - 4) / 4;
      },
      &problem);
  // Scores in units of log2 are whole numbers, so that weights are powers of
  // two: 4 of 64 dimensions count, with products that are multiples of 8.
  for (int64_t at = 0; at < static_cast<int64_t>(problem.q.size()); ++at) {
    const float x(problem.q[at]);
    const float sign = x > 0.25f ? 4.0f : x < -0.25f ? -4.0f : 0.0f;
    problem.q[at] = BFloat16(at % 16 == 0 ? sign : 0.0f);
  }
  // Pairs of keys cancel, so that their mean is 0.
  for (int64_t at = 0; at < static_cast<int64_t>(problem.k.size()); ++at) {
    const float x(problem.k[at - (at / kDim % 2) * kDim]);
    problem.k[at] = BFloat16(at / kDim % 2 == 0 ? 8 * x : -x);
  }
  OVERTURE_ASSERT_OK(Fp8AttentionCpu(problem.params));
  const NaiveAttention naive = ComputeNaiveAttention(problem.params);
  for (int64_t i = 0; i < kQueryHeads * kRows; ++i) {
    // 64 exact products and the softmax in fp32. A weight under half of the
    // smallest code, 2^-15 of the largest weight, is 0.
    ASSERT_NEAR(problem.lse[i], naive.lse[i], 1e-5 + kKeys * 0x1p-15);
  }
  // The output is rounded to bf16.
  EXPECT_LT(ErrorOf(problem), 0x1p-8);
}

TEST(Fp8AttentionCpuTest, WeightsAddUpToOne) {
  Problem problem;
  Fill(Normal, &problem);
  // All scores of a row are about as large, so that all weights are rounded
  // alike; what that makes of their sum is divided out.
  for (BFloat16& x : problem.q) x = BFloat16(static_cast<float>(x) * 0x1p-6f);
  for (BFloat16& x : problem.v) x = BFloat16(1.0f);
  OVERTURE_ASSERT_OK(Fp8AttentionCpu(problem.params));
  for (const BFloat16 x : problem.o) ASSERT_EQ(static_cast<float>(x), 1.0f);
}

TEST(Fp8AttentionCpuTest, RoundingIsWhatThreeBitsOfMantissaAllow) {
  Problem problem;
  Fill(Normal, &problem);
  OVERTURE_ASSERT_OK(Fp8AttentionCpu(problem.params));
  // A value is off by at most 2^-4 of it, in the mean square by 2^-5.3. Scores
  // are sums of 64 products, each off by sqrt(2) of that, scaled by 1/8: 0.036
  // absolute, which a weight is off by; codes of weights and V add 2^-5.3 each.
  // Together 0.051; half as much again for chance.
  EXPECT_LT(ErrorOf(problem), 0.077);
}

TEST(Fp8AttentionCpuTest, WhatAllKeysShareCostsNoPrecision) {
  Problem problem;
  Fill(Normal, &problem);
  // An outlier channel: 100 times the spread of the others. Left in K it would
  // take all of the range, and the error would be about 1.
  for (size_t at = 5; at < problem.k.size(); at += kDim) {
    problem.k[at] = BFloat16(static_cast<float>(problem.k[at]) + 100.0f);
  }
  // bf16 itself then holds that channel to 1/4, which is in the exact result
  // too; a query's error of up to 2^-4 there meets a key's spread alone.
  OVERTURE_ASSERT_OK(Fp8AttentionCpu(problem.params));
  EXPECT_LT(ErrorOf(problem), 0.077);
  const NaiveAttention naive = ComputeNaiveAttention(problem.params);
  for (int64_t i = 0; i < kQueryHeads * kRows; ++i) {
    // The shared part comes back: it is q . c, of up to 100 * 3 / 8.
    ASSERT_NEAR(problem.lse[i], naive.lse[i], 0.25);
  }
}

TEST(Fp8AttentionCpuTest, CodesInStepsAreTheCodesAtOnce) {
  Problem problem;
  Fill(Normal, &problem);
  const auto quantize = [&](std::vector<int64_t> ends) {
    std::vector<uint8_t> buffer(Fp8KvBytes(kKvHeads, kDim, kKeys));
    int64_t begin = 0;
    for (const int64_t end : ends) {
      OVERTURE_EXPECT_OK(QuantizeKvCpu(
          {.k = problem.k.data(),
           .v = problem.v.data(),
           .stride_kv_row = kDim,
           .stride_kv_head = kKeys * kDim,
           .num_kv_heads = kKvHeads,
           .head_dim = kDim,
           .begin = begin,
           .kv_len = end,
           .out = Fp8KvIn(buffer.data(), kKvHeads, kDim, kKeys)}));
      begin = end;
    }
    return buffer;
  };
  EXPECT_EQ(quantize({256, 270, kKeys}), quantize({kKeys}));
}

TEST(Fp8AttentionCpuTest, ATileWithANanIsNan) {
  Problem problem;
  Fill(Normal, &problem);
  const int64_t key = 280;  // beyond the mean
  problem.k[key * kDim] = BFloat16(std::numeric_limits<float>::infinity());
  problem.v[(kKeys + key) * kDim] = BFloat16(std::nanf(""));
  std::vector<uint8_t> buffer(Fp8KvBytes(kKvHeads, kDim, kKeys));
  const Fp8Kv kv = Fp8KvIn(buffer.data(), kKvHeads, kDim, kKeys);
  OVERTURE_ASSERT_OK(QuantizeKvCpu({.k = problem.k.data(),
                                    .v = problem.v.data(),
                                    .stride_kv_row = kDim,
                                    .stride_kv_head = kKeys * kDim,
                                    .num_kv_heads = kKvHeads,
                                    .head_dim = kDim,
                                    .kv_len = kKeys,
                                    .out = kv}));
  for (int64_t tile = 0; tile < kKvHeads * kv.num_tiles; ++tile) {
    EXPECT_EQ(std::isnan(kv.scales[tile].k), tile == key / 64) << tile;
    EXPECT_EQ(std::isnan(kv.scales[tile].v_log2),
              tile == kv.num_tiles + key / 64)
        << tile;
  }
}

}  // namespace
}  // namespace overture::kernels
