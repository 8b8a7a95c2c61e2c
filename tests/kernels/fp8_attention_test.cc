#include "kernels/fp8_attention/fp8_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/fp8_attention/fp8_attention_cpu.h"
#include "kernels/selectors/static_plans.h"
#include "kernels/sparse_attention/uploaded_plan.h"
#include "tests/support/device_copy.h"
#include "tests/support/naive_attention.h"
#include "tests/support/query_ranges.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::ComputeNaiveAttention;
using ::overture::testing::kOddQueryRanges;
using ::overture::testing::NaiveAttention;
using ::overture::testing::StatusIs;
using ::overture::testing::ToDevice;
using ::overture::testing::ToHost;
using ::testing::HasSubstr;

constexpr int32_t kDim = 128;

struct Heads {
  int32_t q = 4;
  int32_t kv = 2;
};

std::vector<BFloat16> Random(int64_t count, float size, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<BFloat16> values(count);
  for (BFloat16& value : values) value = BFloat16(normal(random));
  return values;
}

TilePlan Dense(int64_t q_begin, int64_t q_len, int32_t tile_rows = 128) {
  return *DensePlan({.q_begin = q_begin,
                     .q_len = q_len,
                     .kv_len = q_begin + q_len,
                     .tile_rows = tile_rows,
                     .tile_keys = 64});
}

// Every aligned key tile with this chance, cells without any among them.
TilePlan RandomTiles(int64_t q_begin, int64_t q_len, int32_t num_lists,
                     double chance, std::mt19937& random) {
  TilePlan plan = Dense(q_begin, q_len);
  std::bernoulli_distribution keep(chance);
  plan.num_lists = num_lists;
  plan.ranges.clear();
  plan.range_offsets = {0};
  for (int64_t cell = 0; cell < plan.num_cells(); ++cell) {
    const int64_t tile = cell % plan.num_q_tiles();
    const int64_t end =
        std::min(plan.first_tile_begin() + (tile + 1) * 128, q_begin + q_len);
    for (int64_t key = 0; key < end; key += 64) {
      if (!keep(random)) continue;
      plan.ranges.push_back({static_cast<int32_t>(key), 1});
    }
    plan.range_offsets.push_back(static_cast<int64_t>(plan.ranges.size()));
  }
  plan.interval_offsets.assign(plan.num_cells() + 1, 0);
  plan.column_offsets.assign(num_lists + 1, 0);
  return plan;
}

// Tensors [row, head, dim] of Q and O, [head, key, dim] of K and V.
struct Problem {
  TilePlan plan;
  Heads heads;
  std::vector<BFloat16> q, k, v;

  Problem(TilePlan p, Heads h, uint32_t seed, float q_size = 1.0f)
      : plan(std::move(p)), heads(h) {
    std::mt19937 random(seed);
    q = Random(plan.q_len * heads.q * kDim, q_size, random);
    k = Random(heads.kv * plan.kv_len * kDim, 1, random);
    v = Random(heads.kv * plan.kv_len * kDim, 1, random);
  }

  SparseAttentionParams params() const {
    return {.dtype = DType::kBF16,
            .q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .stride_q_row = heads.q * kDim,
            .stride_q_head = kDim,
            .stride_kv_row = kDim,
            .stride_kv_head = plan.kv_len * kDim,
            .stride_o_row = heads.q * kDim,
            .stride_o_head = kDim,
            .num_q_heads = heads.q,
            .num_kv_heads = heads.kv,
            .head_dim = kDim,
            .scale = 1.0f / std::sqrt(static_cast<float>(kDim)),
            .plan = &plan};
  }
};

struct Result {
  std::vector<BFloat16> o;
  std::vector<float> lse;
};

absl::Status Attend(const Problem& problem, Result* result) {
  OVERTURE_ASSIGN_OR_RETURN(const Stream stream, Stream::Create());
  OVERTURE_ASSIGN_OR_RETURN(const UploadedPlan plan,
                            UploadedPlan::Upload(problem.plan, problem.heads.q,
                                                 problem.heads.kv, stream));
  const auto q = ToDevice(problem.q, stream);
  const auto k = ToDevice(problem.k, stream);
  const auto v = ToDevice(problem.v, stream);
  const int64_t kv_len = problem.plan.kv_len;
  OVERTURE_ASSIGN_OR_RETURN(auto buffer,
                            DeviceBuffer<uint8_t>::Allocate(
                                Fp8KvBytes(problem.heads.kv, kDim, kv_len)));
  OVERTURE_ASSIGN_OR_RETURN(auto scratch,
                            DeviceBuffer<uint8_t>::Allocate(Fp8QueryBytes(
                                problem.heads.q, kDim, problem.plan.q_len)));
  // Poisoned, so that an output nobody writes shows.
  BFloat16 nan;
  nan.bits = 0x7fff;
  auto o = ToDevice(std::vector<BFloat16>(problem.q.size(), nan), stream);
  auto lse = ToDevice(
      std::vector<float>(problem.heads.q * problem.plan.q_len, std::nanf("")),
      stream);
  SparseAttentionParams params = problem.params();
  params.q = q.data();
  params.o = o.data();
  params.lse = lse.data();
  const Fp8Kv kv = Fp8KvIn(buffer.data(), problem.heads.kv, kDim, kv_len);
  OVERTURE_RETURN_IF_ERROR(
      LaunchQuantizeKv({.k = k.data(),
                        .v = v.data(),
                        .stride_kv_row = params.stride_kv_row,
                        .stride_kv_head = params.stride_kv_head,
                        .num_kv_heads = problem.heads.kv,
                        .head_dim = kDim,
                        .kv_len = kv_len,
                        .out = kv},
                       stream.get()));
  OVERTURE_RETURN_IF_ERROR(LaunchFp8Attention(params, plan.plan(), kv,
                                              scratch.data(), stream.get()));
  result->o = ToHost(o, stream);
  result->lse = ToHost(lse, stream);
  return absl::OkStatus();
}

// Every output of the kernel against the CPU's, which has the same codes.
void Check(const Problem& problem) {
  Result gpu;
  OVERTURE_ASSERT_OK(Attend(problem, &gpu));
  Result cpu{std::vector<BFloat16>(gpu.o.size()),
             std::vector<float>(gpu.lse.size())};
  SparseAttentionParams params = problem.params();
  params.o = cpu.o.data();
  params.lse = cpu.lse.data();
  OVERTURE_ASSERT_OK(Fp8AttentionCpu(params));
  // What rounding errors scale with: the weighted sum of |v|.
  Problem absolute = problem;
  for (BFloat16& x : absolute.v) x = BFloat16(std::abs(static_cast<float>(x)));
  std::vector<BFloat16> magnitude(gpu.o.size());
  params.v = absolute.v.data();
  params.o = magnitude.data();
  params.lse = nullptr;
  OVERTURE_ASSERT_OK(Fp8AttentionCpu(params));
  const NaiveAttention naive = ComputeNaiveAttention(problem.params());
  float largest_v = 0;
  for (const BFloat16 x : absolute.v) {
    largest_v = std::max(largest_v, static_cast<float>(x));
  }

  double error = 0, norm = 0, lse_error = 0;
  for (int64_t row = 0; row < problem.plan.q_len; ++row) {
    for (int32_t head = 0; head < problem.heads.q; ++head) {
      const int64_t index = head * problem.plan.q_len + row;
      const std::string where =
          "head " + std::to_string(head) + " row " + std::to_string(row);
      // A score is the sum of 4 steps of 32 products, rounded to f16 after
      // each, 2^-11 of at most the sum of magnitudes, and so is its distance
      // from the reference: in units of log2, twice.
      const double score = 0x1p-9 * M_LOG2E * naive.max_abs[index];
      // Of an exponential in f16.
      constexpr double kExp2 = 0x1p-8;
      // By that much a weight is off before it becomes a code; beside a border
      // the code is then the next one, 2^-3 of the weight away, or 2^-9 where
      // the largest is at least 2^5. That is 2^-14 of it, and 2^-7 where V's
      // tiles are 2^7 apart.
      constexpr double kCode = 0x1p-3 + 0x1p-7;
      const double weight = score + kExp2 + kCode;
      if (std::isinf(cpu.lse[index])) {
        ASSERT_EQ(gpu.lse[index], cpu.lse[index]) << where;
      } else {
        ASSERT_NEAR(gpu.lse[index], cpu.lse[index], weight) << where;
        lse_error += gpu.lse[index] - cpu.lse[index];
      }
      // Weights are in the sum, too. The tensor cores lose at most 2^-13 of the
      // sum of magnitudes 64 times before it leaves them.
      for (int32_t d = 0; d < kDim; ++d) {
        const int64_t at = (row * problem.heads.q + head) * kDim + d;
        const double actual = static_cast<float>(gpu.o[at]);
        const double expected = static_cast<float>(cpu.o[at]);
        const double bound =
            2 * weight * static_cast<float>(magnitude[at]) +
            0x1p-14 * static_cast<double>(problem.plan.kv_len) * largest_v +
            0x1p-7 * std::abs(expected);
        ASSERT_NEAR(actual, expected, bound) << where << " dim " << d;
        error += (actual - expected) * (actual - expected);
        norm += expected * expected;
      }
    }
  }
  // Weights are off by about 2^-9, so that one code in twenty is its neighbour,
  // 2^-3.5 of it away: 2^-5.7 of the weight in the mean square. Signs of V are
  // random: so is the output, unless it is of few weights.
  const double rms = problem.plan.q_len < 64 ? 0x1p-4 : 0x1p-5;
  EXPECT_LE(std::sqrt(error), rms * std::sqrt(norm));
  if (problem.plan.q_len < 64) return;
  // Neighbours are as often below as above, but for exponentials, of which one
  // in four is small by 2^-11 in the mean.
  const auto rows = static_cast<double>(gpu.lse.size());
  EXPECT_LE(std::abs(lse_error), 0x1p-7 * rows);
}

TEST(Fp8AttentionTest, CodesAreTheCpus) {
  std::mt19937 random(1);
  constexpr int64_t kLen = 391;
  constexpr int32_t kHeads = 3;
  auto k = Random(kHeads * kLen * kDim, 1, random);
  auto v = Random(kHeads * kLen * kDim, 30, random);
  // Extremes: a tile of zeros, one of tiny values, one that is not finite.
  std::fill_n(v.begin() + 64 * kDim, 64 * kDim, BFloat16(0.0f));
  std::fill_n(v.begin() + 128 * kDim, 64 * kDim, BFloat16(0x1p-100f));
  k[(kLen + 300) * kDim + 7] = BFloat16(-INFINITY);
  std::vector<uint8_t> expected(Fp8KvBytes(kHeads, kDim, kLen));
  QuantizeKvParams params = {
      .k = k.data(),
      .v = v.data(),
      .stride_kv_row = kDim,
      .stride_kv_head = kLen * kDim,
      .num_kv_heads = kHeads,
      .head_dim = kDim,
      .kv_len = kLen,
      .out = Fp8KvIn(expected.data(), kHeads, kDim, kLen)};
  OVERTURE_ASSERT_OK(QuantizeKvCpu(params));

  OVERTURE_ASSERT_OK_AND_ASSIGN(const Stream stream, Stream::Create());
  auto buffer = ToDevice(std::vector<uint8_t>(expected.size()), stream);
  const auto device_k = ToDevice(k, stream);
  const auto device_v = ToDevice(v, stream);
  params.k = device_k.data();
  params.v = device_v.data();
  params.out = Fp8KvIn(buffer.data(), kHeads, kDim, kLen);
  // In two steps, as segments of a prompt come.
  params.kv_len = 300;
  OVERTURE_ASSERT_OK(LaunchQuantizeKv(params, stream.get()));
  params.begin = 300;
  params.kv_len = kLen;
  OVERTURE_ASSERT_OK(LaunchQuantizeKv(params, stream.get()));
  auto actual = ToHost(buffer, stream);

  // Bit patterns of NaN scales may differ.
  const int64_t tiles = kHeads * params.out.num_tiles;
  const auto scales_at =
      reinterpret_cast<uint8_t*>(params.out.scales) - buffer.data();
  for (int64_t i = 0; i < 4 * tiles; ++i) {
    auto* a = reinterpret_cast<float*>(&actual[scales_at]) + i;
    auto* e = reinterpret_cast<float*>(&expected[scales_at]) + i;
    EXPECT_EQ(std::isnan(*a), std::isnan(*e)) << i;
    if (std::isnan(*e)) *a = *e = 0;
  }
  int64_t different = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    // A NaN code may have either sign.
    const bool nan = (expected[i] & 0x7f) == 0x7f;
    different += nan ? (actual[i] & 0x7f) != 0x7f : actual[i] != expected[i];
  }
  EXPECT_EQ(different, 0);
}

TEST(Fp8AttentionTest, DenseMatchesTheCpu) { Check({Dense(0, 512), {}, 1}); }

TEST(Fp8AttentionTest, OddLengthsAndPrefixOffsets) {
  for (const auto& [q_begin, q_len] : kOddQueryRanges) {
    SCOPED_TRACE(::testing::PrintToString(std::pair(q_begin, q_len)));
    Check({Dense(q_begin, q_len), {}, 2});
  }
}

TEST(Fp8AttentionTest, LongRowsLeaveTheAccumulatorsOften) {
  Check({Dense(2900, 100), {2, 1}, 3});
}

TEST(Fp8AttentionTest, RandomTilesPerQueryHeadPerKvHeadAndShared) {
  const uint32_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 random(seed);
  for (const int32_t num_lists : {4, 2, 1}) {
    for (const int64_t q_begin : {0, 77, 300}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " lists " +
                   std::to_string(num_lists) + " q_begin " +
                   std::to_string(q_begin));
      Check({RandomTiles(q_begin, 391, num_lists, 0.4, random),
             {},
             static_cast<uint32_t>(random())});
    }
  }
}

TEST(Fp8AttentionTest, PackedHeads) {
  Check({Dense(5, 300, 64), {4, 2}, 4});
  Check({Dense(70, 300, 16), {8, 1}, 5});
}

TEST(Fp8AttentionTest, RowsWithoutKeysAreZeroAndMinusInfinity) {
  std::mt19937 random(6);
  const Problem problem{RandomTiles(200, 300, 1, 0.0, random), {}, 6};
  Result result;
  OVERTURE_ASSERT_OK(Attend(problem, &result));
  for (const BFloat16 x : result.o) ASSERT_EQ(static_cast<float>(x), 0.0f);
  for (const float x : result.lse) {
    ASSERT_EQ(x, -std::numeric_limits<float>::infinity());
  }
}

TEST(Fp8AttentionTest, LargeScoresMoveTheReferenceOften) {
  Check({Dense(0, 700), {}, 7, /*q_size=*/30.0f});
}

TEST(Fp8AttentionTest, NegativeScoresAlone) {
  // Every query points away from every key but for their spread. The mean
  // would hide that, so the first keys are what others are not.
  Problem problem{Dense(300, 300), {}, 8};
  for (int64_t at = 0; at < static_cast<int64_t>(problem.k.size()); ++at) {
    const float bias = at / kDim % problem.plan.kv_len < 256 ? 0.0f : 1.0f;
    problem.k[at] = BFloat16(static_cast<float>(problem.k[at]) * 0.25f + bias);
  }
  for (BFloat16& x : problem.q) {
    x = BFloat16(-0.5f + 0.25f * static_cast<float>(x));
  }
  // The first 256 keys, whose scores are about 0, are not attended to.
  problem.plan.ranges.clear();
  problem.plan.range_offsets = {0};
  for (int64_t cell = 0; cell < problem.plan.num_cells(); ++cell) {
    const int64_t end = std::min<int64_t>(256 + (cell + 1) * 128, 600);
    problem.plan.ranges.push_back(
        {256, static_cast<int32_t>((end - 256 + 63) / 64)});
    problem.plan.range_offsets.push_back(cell + 1);
  }
  Check(problem);
}

TEST(Fp8AttentionTest, WeightsAddUpToOne) {
  // Scores are about alike, so that all codes of a row are rounded alike: what
  // that makes of their sum must be divided out.
  Problem problem{Dense(1000, 200), {}, 11, /*q_size=*/0x1p-6f};
  std::fill(problem.v.begin(), problem.v.end(), BFloat16(1.0f));
  Result result;
  OVERTURE_ASSERT_OK(Attend(problem, &result));
  for (const BFloat16 x : result.o) {
    // Output and sum lose the same; two bf16 steps below 1 are 2^-7.
    ASSERT_NEAR(static_cast<float>(x), 1.0f, 0x1p-7);
  }
}

TEST(Fp8AttentionTest, ValuesOfVeryDifferentSize) {
  // Tiles of V from 2^-5 to 2^4, zeros among them, whose keys count in the
  // sum of weights all the same.
  Problem problem{Dense(0, 640), {1, 1}, 9};
  for (int64_t at = 0; at < static_cast<int64_t>(problem.v.size()); ++at) {
    const int64_t tile = at / kDim / 64;
    const float size = tile == 3 ? 0.0f : std::ldexp(1.0f, tile - 5);
    problem.v[at] = BFloat16(static_cast<float>(problem.v[at]) * size);
  }
  Check(problem);
}

TEST(Fp8AttentionTest, WhatIsNotFiniteShowsWhereItIsAttendedTo) {
  for (const bool in_v : {false, true}) {
    Problem problem{Dense(0, 512), {4, 2}, 10};
    auto& tensor = in_v ? problem.v : problem.k;
    tensor[300 * kDim + 5] = BFloat16(std::nanf(""));  // head 0, tile 256..319
    problem.q[2 * kDim] = BFloat16(INFINITY);          // row 0, head 2
    Result result;
    OVERTURE_ASSERT_OK(Attend(problem, &result));
    for (int64_t row = 0; row < 512; ++row) {
      for (int32_t head = 0; head < 4; ++head) {
        const bool bad = (head < 2 && row >= 256) || (head == 2 && row == 0);
        for (int32_t d = 0; d < kDim; ++d) {
          const float x(result.o[(row * 4 + head) * kDim + d]);
          ASSERT_EQ(std::isnan(x), bad) << row << " " << head << " " << d;
        }
      }
    }
  }
}

TEST(Fp8AttentionTest, WhatItCannotRunIsNamed) {
  SparseAttentionParams params = {.dtype = DType::kBF16,
                                  .num_q_heads = 4,
                                  .num_kv_heads = 2,
                                  .head_dim = 64};
  EXPECT_THAT(SupportsFp8Attention(params),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("head dim 128, got 64")));
  params.head_dim = 128;
  OVERTURE_EXPECT_OK(SupportsFp8Attention(params));
  const int32_t column = 0;
  EXPECT_THAT(
      LaunchFp8Attention(params, {.columns = &column}, {}, nullptr, nullptr),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("single columns")));
  EXPECT_THAT(
      LaunchFp8Attention(params, {.kv_len = 65}, {.num_tiles = 1}, nullptr,
                         nullptr),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("room for 64")));
  params.dtype = DType::kF32;
  EXPECT_THAT(SupportsFp8Attention(params),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("f32")));
  EXPECT_THAT(LaunchQuantizeKv({.num_kv_heads = 1, .head_dim = 96}, nullptr),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("got 96")));
}

}  // namespace
}  // namespace overture::kernels
