#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda/device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/selectors/static_plans.h"
#include "kernels/sparse_attention/expanded_plan.h"
#include "kernels/sparse_attention/launch.h"
#include "kernels/sparse_attention/sparse_attention.h"
#include "kernels/sparse_attention/uploaded_plan.h"
#include "tests/support/naive_attention.h"
#include "tests/support/query_ranges.h"
#include "tests/support/random_plan.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::ComputeNaiveAttention;
using ::overture::testing::kOddQueryRanges;
using ::overture::testing::NaiveAttention;
using ::overture::testing::RandomPlan;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

struct Shape {
  int32_t num_q_heads = 4;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 128;
};

std::vector<BFloat16> Random(int64_t count, float size, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<BFloat16> values(count);
  for (BFloat16& value : values) value = BFloat16(normal(random));
  return values;
}

// Runs the kernel on random data and compares every output with the oracle.
void CheckPlan(AttentionKernel kernel, const TilePlan& plan, const Shape& shape,
               uint32_t seed, float q_size = 1.0f) {
  std::mt19937 random(seed);
  const int64_t dim = shape.head_dim;
  SparseAttentionParams params = {
      .dtype = DType::kBF16,
      .stride_q_row = shape.num_q_heads * dim,  // [row, head, dim]
      .stride_q_head = dim,
      .stride_kv_row = dim,
      .stride_kv_head = plan.kv_len * dim,
      .stride_mean_row = dim + 8,
      .stride_mean_head = (plan.kv_len / kMeanBlockKeys + 1) * (dim + 8),
      .stride_o_row = shape.num_q_heads * dim,
      .stride_o_head = dim,
      .num_q_heads = shape.num_q_heads,
      .num_kv_heads = shape.num_kv_heads,
      .head_dim = shape.head_dim,
      .scale = 1.0f / std::sqrt(static_cast<float>(dim)),
      .plan = &plan};
  const auto q = Random(plan.q_len * params.stride_q_row, q_size, random);
  const auto k = Random(shape.num_kv_heads * params.stride_kv_head, 1, random);
  const auto v = Random(shape.num_kv_heads * params.stride_kv_head, 1, random);
  params.q = q.data();
  params.k = k.data();
  params.v = v.data();
  // Any rows will do: the kernel does not ask what they are means of.
  const int64_t means = shape.num_kv_heads * params.stride_mean_head;
  const auto k_means = Random(means, 1, random);
  const auto v_means = Random(means, 1, random);
  params.k_means = k_means.data();
  params.v_means = v_means.data();
  const NaiveAttention naive = ComputeNaiveAttention(params);

  OVERTURE_ASSERT_OK_AND_ASSIGN(const Stream stream, Stream::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const UploadedPlan uploaded,
      UploadedPlan::Upload(plan, shape.num_q_heads, shape.num_kv_heads,
                           stream));
  const auto upload = [&](const std::vector<BFloat16>& host) {
    auto buffer = DeviceBuffer<BFloat16>::Allocate(host.size());
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    OVERTURE_EXPECT_OK(buffer->CopyFromHost(absl::MakeConstSpan(host), stream));
    return *std::move(buffer);
  };
  const auto device_q = upload(q);
  const auto device_k = upload(k);
  const auto device_v = upload(v);
  const auto device_k_means = upload(k_means);
  const auto device_v_means = upload(v_means);
  // Poisoned, so that an output nobody writes shows.
  BFloat16 nan;
  nan.bits = 0x7fff;
  std::vector<BFloat16> o(plan.q_len * params.stride_o_row, nan);
  std::vector<float> lse(shape.num_q_heads * plan.q_len, std::nanf(""));
  auto device_o = upload(o);
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto device_lse,
                                DeviceBuffer<float>::Allocate(lse.size()));
  params.q = device_q.data();
  params.k = device_k.data();
  params.v = device_v.data();
  params.k_means = device_k_means.data();
  params.v_means = device_v_means.data();
  params.o = device_o.data();
  params.lse = device_lse.data();
  OVERTURE_ASSERT_OK(
      LaunchSparseAttentionWith(kernel, params, uploaded.plan(), stream.get()));
  OVERTURE_ASSERT_OK(device_o.CopyToHost(absl::MakeSpan(o), stream));
  OVERTURE_ASSERT_OK(device_lse.CopyToHost(absl::MakeSpan(lse), stream));
  OVERTURE_ASSERT_OK(stream.Synchronize());

  constexpr double kU = 0x1p-24;     // unit roundoff of fp32
  constexpr double kBf16 = 0x1p-8;   // of bf16
  constexpr double kExp2 = 0x1p-22;  // relative error of ex2.approx
  for (int32_t head = 0; head < shape.num_q_heads; ++head) {
    for (int64_t row = 0; row < plan.q_len; ++row) {
      const int64_t index = head * plan.q_len + row;
      const std::string where =
          "head " + std::to_string(head) + " row " + std::to_string(row);
      const double exact_lse = naive.lse[index];
      if (std::isinf(exact_lse)) {
        ASSERT_EQ(lse[index], -std::numeric_limits<float>::infinity()) << where;
      } else {
        // A score sums dim exact products in fp32 and is scaled and shifted: (2
        // dim + 6) roundings of at most the largest sum of |q k| * scale, twice
        // (reference and score). The sum over the keys adds one rounding a
        // step, log2 and its scaling two of the result.
        const double score = 2 * (2 * dim + 6) * kU * naive.max_abs[index];
        const double sum = plan.kv_len * kU + kExp2;
        ASSERT_NEAR(lse[index], exact_lse,
                    score + sum + 4 * kU * std::abs(exact_lse))
            << where;
      }
      const double weight =
          2 * (2 * dim + 6) * kU * naive.max_abs[index] + kExp2;
      for (int64_t i = 0; i < dim; ++i) {
        const int64_t at = index * dim + i;
        const float actual =
            static_cast<float>(o[row * params.stride_o_row + head * dim + i]);
        // Weights carry their own error, in numerator and sum, and a bf16
        // rounding; the output is rounded to bf16 once more.
        const double bound =
            (kBf16 + 2 * weight + 2 * plan.kv_len * kU) * naive.magnitude[at] +
            kBf16 * std::abs(naive.o[at]) * 1.01 + 1e-30;
        ASSERT_NEAR(actual, naive.o[at], bound) << where << " dim " << i;
      }
    }
  }
}

TilePlan Dense(int64_t q_begin, int64_t q_len) {
  return *DensePlan({.q_begin = q_begin,
                     .q_len = q_len,
                     .kv_len = q_begin + q_len,
                     .tile_rows = 128,
                     .tile_keys = 64});
}

class SparseAttentionGpuTest
    : public ::testing::TestWithParam<std::tuple<AttentionKernel, int32_t>> {
 protected:
  void SetUp() override {
    OVERTURE_ASSERT_OK_AND_ASSIGN(const DeviceInfo device, GetDeviceInfo(0));
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const AttentionKernel best,
        AttentionKernelFor(device.capability_major, device.capability_minor));
    if (kernel() == AttentionKernel::kSm90 && best != kernel()) {
      GTEST_SKIP() << "needs capability 9.0, this is " << ToString(device);
    }
  }
  AttentionKernel kernel() const { return std::get<0>(GetParam()); }
  int32_t head_dim() const { return std::get<1>(GetParam()); }
  Shape shape() const { return {.head_dim = head_dim()}; }
  void Check(const TilePlan& plan, const Shape& shape, uint32_t seed,
             float q_size = 1.0f) const {
    CheckPlan(kernel(), plan, shape, seed, q_size);
  }
};

TEST_P(SparseAttentionGpuTest, DenseMatchesTheOracle) {
  Check(Dense(0, 512), shape(), 1);
}

TEST_P(SparseAttentionGpuTest, OddLengthsAndPrefixOffsets) {
  for (const auto& [q_begin, q_len] : kOddQueryRanges) {
    SCOPED_TRACE(::testing::PrintToString(std::pair(q_begin, q_len)));
    Check(Dense(q_begin, q_len), shape(), 2);
  }
}

TEST_P(SparseAttentionGpuTest, RandomPlansPerQueryHeadPerKvHeadAndShared) {
  const uint32_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 random(seed);
  for (int32_t num_lists : {4, 2, 1}) {
    for (int64_t q_begin : {0, 77, 300}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " lists " +
                   std::to_string(num_lists) + " q_begin " +
                   std::to_string(q_begin));
      const TilePlan plan = RandomPlan({.q_begin = q_begin,
                                        .q_len = 391,
                                        .kv_len = q_begin + 391,
                                        .tile_rows = 128,
                                        .tile_keys = 64,
                                        .num_lists = num_lists,
                                        .num_columns = 200,
                                        .empty_cells = 0.2},
                                       random);
      Check(plan, shape(), random());
    }
  }
}

TEST_P(SparseAttentionGpuTest, OnlyColumnsAndOnlyEmptyCells) {
  std::mt19937 random(3);
  TilePlan plan = RandomPlan({.q_begin = 512,
                              .q_len = 200,
                              .kv_len = 712,
                              .tile_rows = 128,
                              .tile_keys = 64,
                              .num_lists = 1,
                              .num_columns = 400},
                             random);
  plan.ranges.clear();
  plan.range_offsets.assign(plan.range_offsets.size(), 0);
  Check(plan, shape(), 4);
  plan.intervals.clear();
  plan.interval_offsets.assign(plan.interval_offsets.size(), 0);
  Check(plan, shape(), 5);
}

TEST_P(SparseAttentionGpuTest, LargeScoresMoveTheReferenceOften) {
  // Scores of a few hundred: the running maximum jumps by more than its slack.
  Check(Dense(0, 700), shape(), 6, /*q_size=*/30.0f);
}

TEST_P(SparseAttentionGpuTest, GroupsOfOneAndOfEight) {
  Check(Dense(5, 300), {3, 3, head_dim()}, 7);
  Check(Dense(5, 300), {8, 1, head_dim()}, 8);
}

TEST_P(SparseAttentionGpuTest, PackedHeadsShareTheirKvHeadsList) {
  const uint32_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 random(seed);
  for (int32_t group : {2, 4, 8, 12}) {
    const Shape shape = {2 * group, 2, head_dim()};
    for (const auto& [q_begin, q_len] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 129}, {77, 91}}) {
      for (int32_t num_lists : {2, 1}) {
        SCOPED_TRACE(::testing::PrintToString(
            std::tuple(seed, group, q_begin, q_len, num_lists)));
        const TilePlan plan = RandomPlan(
            {.q_begin = q_begin,
             .q_len = q_len,
             .kv_len = q_begin + q_len,
             .tile_rows = GpuTileRows(num_lists, shape.num_q_heads, 2),
             .tile_keys = 64,
             .num_lists = num_lists,
             .num_columns = 60,
             .empty_cells = 0.1},
            random);
        Check(plan, shape, random());
      }
    }
  }
}

TEST_P(SparseAttentionGpuTest, CorrectedBlocksEnterAsTheirMeans) {
  const uint32_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 random(seed);
  // With few columns, so that blocks stay free, packed and not, interrupted
  // and whole.
  for (const auto& [tile_rows, columns, means] :
       std::vector<std::tuple<int32_t, int32_t, double>>{
           {128, 10, 0.5}, {128, 0, 1.0}, {64, 10, 0.7}, {64, 150, 1.0}}) {
    SCOPED_TRACE(
        ::testing::PrintToString(std::tuple(seed, tile_rows, columns, means)));
    Check(RandomPlan({.q_begin = 1930,
                      .q_len = 131,
                      .kv_len = 2061,
                      .tile_rows = tile_rows,
                      .tile_keys = 64,
                      .num_lists = 2,
                      .range_density = 0.02,
                      .num_columns = columns,
                      .means = means},
                     random),
          shape(), random());
  }
}

TEST_P(SparseAttentionGpuTest, MoreMeansThanAStepAndThanAWarpHoldsIntervals) {
  // 200 blocks; every third is left out, so that 67 intervals fill 134 rows.
  TilePlan plan = Dense(200 * kMeanBlockKeys, 20);
  plan.ranges = {{.begin = 200 * kMeanBlockKeys, .num_tiles = 1}};
  for (int32_t block = 0; block < 200; block += 3) {
    plan.mean_blocks.push_back(
        {.begin = block, .count = std::min(2, 200 - block)});
  }
  plan.mean_offsets = {0, static_cast<int64_t>(plan.mean_blocks.size())};
  OVERTURE_ASSERT_OK(Validate(plan));
  Check(plan, shape(), 11);
}

TEST_P(SparseAttentionGpuTest, OnePackedRowAndTheLargestPack) {
  const auto dense = [](int64_t q_begin, int64_t q_len, int32_t tile_rows) {
    return *DensePlan({.q_begin = q_begin,
                       .q_len = q_len,
                       .kv_len = q_begin + q_len,
                       .tile_rows = tile_rows,
                       .tile_keys = 64});
  };
  Check(dense(333, 1, 32), {8, 2, head_dim()}, 9);
  Check(dense(3, 67, 128 / kMaxPackedHeads), {64, 1, head_dim()}, 10);
}

INSTANTIATE_TEST_SUITE_P(
    Kernels, SparseAttentionGpuTest,
    ::testing::Combine(::testing::Values(AttentionKernel::kSm80,
                                         AttentionKernel::kSm90),
                       ::testing::Values(64, 96, 128)),
    [](const auto& info) {
      return absl::StrCat(
          std::get<0>(info.param) == AttentionKernel::kSm80 ? "Sm80" : "Sm90",
          "HeadDim", std::get<1>(info.param));
    });

TEST(SparseAttentionGpuTest, TheDevicesCapabilityPicksTheKernel) {
  EXPECT_EQ(*AttentionKernelFor(8, 0), AttentionKernel::kSm80);
  EXPECT_EQ(*AttentionKernelFor(8, 9), AttentionKernel::kSm80);
  EXPECT_EQ(*AttentionKernelFor(9, 0), AttentionKernel::kSm90);
  EXPECT_EQ(*AttentionKernelFor(12, 0), AttentionKernel::kSm80);
  EXPECT_THAT(AttentionKernelFor(7, 5),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("has 7.5")));
}

TEST(SparseAttentionGpuTest, ThePlanMustFitTheTensors) {
  const SparseAttentionParams params = {.dtype = DType::kBF16,
                                        .num_q_heads = 6,
                                        .num_kv_heads = 2,
                                        .head_dim = 64};
  DeviceTilePlan plan = {.num_lists = 2, .tile_rows = 64};
  EXPECT_THAT(
      LaunchSparseAttention(params, plan, nullptr),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("64 rows")));
  const BlockInterval block;
  plan = {.num_lists = 2, .mean_blocks = &block};
  EXPECT_THAT(LaunchSparseAttention(params, plan, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("k_means or v_means is null")));
}

TEST(SparseAttentionGpuTest, WhatItCannotRunIsNamed) {
  SparseAttentionParams params = {.dtype = DType::kBF16,
                                  .num_q_heads = 4,
                                  .num_kv_heads = 2,
                                  .head_dim = 80};
  EXPECT_THAT(SupportsSparseAttention(params),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("head dim 64, 96 or 128, got 80")));
  params.head_dim = 64;
  params.dtype = DType::kF32;
  EXPECT_THAT(SupportsSparseAttention(params),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("f32")));
  params.dtype = DType::kBF16;
  params.stride_q_row = 4;
  EXPECT_THAT(SupportsSparseAttention(params),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("multiples of 8 elements, got 4")));
}

}  // namespace
}  // namespace overture::kernels
