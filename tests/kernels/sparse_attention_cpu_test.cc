#include "kernels/sparse_attention/sparse_attention_cpu.h"

#include <omp.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/selectors/static_plans.h"
#include "tests/support/naive_attention.h"
#include "tests/support/random_plan.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::ComputeNaiveAttention;
using ::overture::testing::NaiveAttention;
using ::overture::testing::RandomPlan;
using ::overture::testing::RandomPlanOptions;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Shape {
  DType dtype = DType::kBF16;
  int32_t num_q_heads = 3;
  int32_t num_kv_heads = 1;
  int32_t head_dim = 64;
};

// Tensors of one call, as bytes of the dtype, with gaps between rows and heads
// so that a wrong stride shows. Rows of K and V past kv_len are NaN.
class Problem {
 public:
  Problem(const Shape& shape, const TilePlan& plan, uint32_t seed,
          float q_size = 1.0f)
      : shape_(shape), plan_(plan) {
    std::mt19937 random(seed);
    const int64_t dim = shape.head_dim;
    params_ = {
        .dtype = shape.dtype,
        .stride_q_row = shape.num_q_heads * dim + 16,
        .stride_q_head = dim,
        .stride_kv_row = dim,
        .stride_kv_head = (plan.kv_len + kPastRows) * dim,
        .stride_mean_row = dim + 16,
        .stride_mean_head = (plan.kv_len / kMeanBlockKeys + 1) * (dim + 16),
        .stride_o_row = dim,
        .stride_o_head = plan.q_len * dim,
        .num_q_heads = shape.num_q_heads,
        .num_kv_heads = shape.num_kv_heads,
        .head_dim = shape.head_dim,
        .scale = 1.0f / std::sqrt(static_cast<float>(dim)),
        .plan = &plan_};
    q_ = Fill(plan.q_len * params_.stride_q_row, q_size, random);
    k_ = Fill(shape.num_kv_heads * params_.stride_kv_head, 1.0f, random);
    v_ = Fill(shape.num_kv_heads * params_.stride_kv_head, 1.0f, random);
    for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
      const int64_t past = head * params_.stride_kv_head + plan.kv_len * dim;
      for (int64_t i = 0; i < kPastRows * dim; ++i) {
        Set(k_, past + i, std::nanf(""));
        Set(v_, past + i, std::nanf(""));
      }
    }
    // Any rows will do: the attention does not ask what they are means of.
    const int64_t means = shape.num_kv_heads * params_.stride_mean_head;
    k_means_ = Fill(means, 1.0f, random);
    v_means_ = Fill(means, 1.0f, random);
    o_.resize(shape.num_q_heads * params_.stride_o_head * SizeOf(shape.dtype));
    lse_.resize(shape.num_q_heads * plan.q_len);
    Point();
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  SparseAttentionParams& params() { return params_; }
  const TilePlan& plan() const { return plan_; }
  TilePlan& plan() { return plan_; }

  void Run() { OVERTURE_ASSERT_OK(SparseAttentionCpu(params_)); }

  float o(int32_t head, int64_t row, int64_t i) const {
    return Get(o_,
               head * params_.stride_o_head + row * params_.stride_o_row + i);
  }
  float lse(int32_t head, int64_t row) const {
    return lse_[head * plan_.q_len + row];
  }
  const std::vector<char>& o_bytes() const { return o_; }
  const std::vector<float>& lse_values() const { return lse_; }

  // Compares with the oracle.
  void Check() const {
    const NaiveAttention naive = ComputeNaiveAttention(params_);
    const int64_t dim = shape_.head_dim;
    // Unit roundoffs: fp32, and the tensors' type.
    constexpr double kU = 0x1p-24;
    const bool bf16 = shape_.dtype == DType::kBF16;
    const double rounding = bf16 ? 0x1p-8 : kU;
    for (int32_t head = 0; head < shape_.num_q_heads; ++head) {
      for (int64_t row = 0; row < plan_.q_len; ++row) {
        const int64_t index = head * plan_.q_len + row;
        const std::string where =
            "head " + std::to_string(head) + " row " + std::to_string(row);
        const double exact_lse = naive.lse[index];
        if (std::isinf(exact_lse)) {
          ASSERT_EQ(lse(head, row), -kInf) << where;
          for (int64_t i = 0; i < dim; ++i) {
            ASSERT_EQ(o(head, row, i), 0.0f) << where;
          }
          continue;
        }
        // A score is a sum of dim products, exact in fp32 for bf16, at most one
        // rounding each for fp32, then scaled by a rounded constant and moved
        // by the maximum: (2 dim + 6) roundings of at most the largest sum of
        // |q k| * scale. A weight's relative error is that, plus 2^x's own.
        const double weight =
            (2 * dim + 6) * kU * naive.max_abs[index] + 2.1e-7;
        // Sums of weights add at most one rounding per key and chunk.
        const double sums = (plan_.kv_len + 64) * kU;
        ASSERT_NEAR(lse(head, row), exact_lse,
                    weight + sums + 8 * kU * (1 + std::abs(exact_lse)) +
                        4 * kU * naive.max_abs[index])
            << where;
        for (int64_t i = 0; i < dim; ++i) {
          const double exact = naive.o[index * dim + i];
          // Numerator and denominator each carry the weights' error and their
          // own sums' roundings; in bf16 every weight of the numerator was
          // rounded once more, and so was the output.
          const double relative =
              2 * weight + 3 * sums + (bf16 ? rounding : 0.0);
          ASSERT_NEAR(o(head, row, i), exact,
                      relative * naive.magnitude[index * dim + i] +
                          rounding * std::abs(exact) + 1e-30)
              << where << " dim " << i;
        }
      }
    }
  }

 private:
  static constexpr int64_t kPastRows = 3;

  void Set(std::vector<char>& bytes, int64_t index, float value) const {
    if (shape_.dtype == DType::kF32) {
      std::memcpy(&bytes[index * 4], &value, 4);
    } else {
      const uint16_t bits = BFloat16(value).bits;
      std::memcpy(&bytes[index * 2], &bits, 2);
    }
  }
  float Get(const std::vector<char>& bytes, int64_t index) const {
    float value;
    if (shape_.dtype == DType::kF32) {
      std::memcpy(&value, &bytes[index * 4], 4);
      return value;
    }
    BFloat16 half;
    std::memcpy(&half.bits, &bytes[index * 2], 2);
    return static_cast<float>(half);
  }
  std::vector<char> Fill(int64_t count, float size, std::mt19937& random) {
    std::normal_distribution<float> normal(0.0f, size);
    std::vector<char> bytes(count * SizeOf(shape_.dtype));
    for (int64_t i = 0; i < count; ++i) Set(bytes, i, normal(random));
    return bytes;
  }
  void Point() {
    params_.q = q_.data();
    params_.k = k_.data();
    params_.v = v_.data();
    params_.k_means = k_means_.data();
    params_.v_means = v_means_.data();
    params_.o = o_.data();
    params_.lse = lse_.data();
  }

  const Shape shape_;
  TilePlan plan_;
  SparseAttentionParams params_;
  std::vector<char> q_, k_, v_, k_means_, v_means_, o_;
  std::vector<float> lse_;
};

TilePlan Dense(int64_t q_begin, int64_t q_len, int64_t kv_len,
               int32_t tile_rows = 64, int32_t tile_keys = 64) {
  auto plan = DensePlan({.q_begin = q_begin,
                         .q_len = q_len,
                         .kv_len = kv_len,
                         .tile_rows = tile_rows,
                         .tile_keys = tile_keys});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

void CheckRandom(const Shape& shape, RandomPlanOptions options, uint32_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Problem problem(shape, RandomPlan(options, random), seed + 1);
  problem.Run();
  problem.Check();
}

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};

TEST(SparseAttentionCpu, DenseEqualsTheOracleForEveryHeadDim) {
  for (DType dtype : kDTypes) {
    for (int32_t head_dim : {16, 48, 64, 80, 96, 128, 256}) {
      SCOPED_TRACE(std::string(Name(dtype)) + " " + std::to_string(head_dim));
      Problem problem({.dtype = dtype, .head_dim = head_dim}, Dense(0, 70, 70),
                      head_dim);
      problem.Run();
      problem.Check();
    }
  }
}

TEST(SparseAttentionCpu, DenseOverSeveralChunksEqualsTheOracle) {
  for (DType dtype : kDTypes) {
    Problem problem({.dtype = dtype, .num_q_heads = 2, .num_kv_heads = 1},
                    Dense(0, 1100, 1100), 1);
    problem.Run();
    problem.Check();
  }
}

TEST(SparseAttentionCpu, OneTokenEqualsTheOracle) {
  for (DType dtype : kDTypes) {
    for (int64_t kv_len : {1, 2, 64, 65, 129, 700}) {
      Problem problem({.dtype = dtype}, Dense(kv_len - 1, 1, kv_len), 2);
      problem.Run();
      problem.Check();
    }
  }
}

TEST(SparseAttentionCpu, QueriesBeginAnywhereAndKeysMayGoOnAfterThem) {
  for (DType dtype : kDTypes) {
    for (auto [q_begin, q_len, kv_len] : {std::tuple{37, 100, 137},
                                          {200, 50, 300},
                                          {63, 2, 65},
                                          {64, 1, 200}}) {
      Problem problem({.dtype = dtype}, Dense(q_begin, q_len, kv_len), 3);
      problem.Run();
      problem.Check();
    }
  }
}

TEST(SparseAttentionCpu, OneListPerQueryHeadKvHeadOrForAll) {
  for (DType dtype : kDTypes) {
    for (auto [num_q_heads, num_kv_heads] :
         {std::pair{4, 4}, {6, 2}, {5, 1}, {1, 1}}) {
      for (int32_t num_lists : {1, num_kv_heads, num_q_heads}) {
        SCOPED_TRACE(num_lists);
        CheckRandom({.dtype = dtype,
                     .num_q_heads = num_q_heads,
                     .num_kv_heads = num_kv_heads},
                    {.q_begin = 130,
                     .q_len = 150,
                     .kv_len = 290,
                     .num_lists = num_lists},
                    100 + num_lists);
      }
    }
  }
}

TEST(SparseAttentionCpu, RandomPlansEqualTheOracle) {
  constexpr std::pair<int32_t, int32_t> kTiles[] = {
      {64, 64}, {128, 128}, {128, 64}, {16, 32}, {48, 16}, {512, 64}};
  for (uint32_t seed = 1000; seed < 1030; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const auto [tile_rows, tile_keys] = kTiles[pick(0, std::size(kTiles) - 1)];
    const int64_t q_begin = pick(0, 1) * pick(0, 900);
    const int64_t q_len = pick(1, 200);
    const int32_t group = static_cast<int32_t>(pick(1, 3));
    const int32_t num_kv_heads = static_cast<int32_t>(pick(1, 2));
    constexpr int32_t kHeadDims[] = {64, 96, 128};
    CheckRandom({.dtype = kDTypes[pick(0, 1)],
                 .num_q_heads = group * num_kv_heads,
                 .num_kv_heads = num_kv_heads,
                 .head_dim = kHeadDims[pick(0, 2)]},
                {.q_begin = q_begin,
                 .q_len = q_len,
                 .kv_len = q_begin + q_len + pick(0, 1) * pick(0, 70),
                 .tile_rows = tile_rows,
                 .tile_keys = tile_keys,
                 .num_lists = pick(0, 1) == 0 ? 1 : num_kv_heads,
                 .range_density = 0.1 * static_cast<double>(pick(1, 9)),
                 .num_columns = static_cast<int32_t>(pick(0, 300)),
                 .empty_cells = pick(0, 2) == 0 ? 0.3 : 0.0},
                seed);
  }
}

TEST(SparseAttentionCpu, CorrectedBlocksEnterAsTheirMeans) {
  for (uint32_t seed = 2000; seed < 2012; ++seed) {
    for (DType dtype : kDTypes) {
      CheckRandom({.dtype = dtype, .num_q_heads = 4, .num_kv_heads = 2},
                  {.q_begin = 700 + seed % 50,
                   .q_len = 150,
                   .kv_len = 910,
                   .tile_rows = seed % 2 ? 128 : 32,
                   .num_lists = 2,
                   .range_density = 0.05,
                   .num_columns = 5,
                   .means = seed % 3 ? 0.6 : 1.0},
                  seed);
    }
  }
}

// Keys that are all alike are their own mean: correcting their blocks changes
// nothing, which is what the logarithm of the size is for.
TEST(SparseAttentionCpu, BlocksOfEqualKeysAreCorrectedExactly) {
  constexpr int64_t kLen = 640;
  TilePlan corrected = Dense(512, 128, kLen, 128);
  corrected.ranges = {{.begin = 512, .num_tiles = 2}};
  corrected.mean_offsets = {0, 1};
  corrected.mean_blocks = {{.begin = 0, .count = 4}};
  OVERTURE_ASSERT_OK(Validate(corrected));
  const Shape shape = {.dtype = DType::kF32, .num_q_heads = 1};
  Problem dense(shape, Dense(512, 128, kLen, 128), 17);
  Problem means(shape, corrected, 17);
  for (Problem* problem : {&dense, &means}) {
    const SparseAttentionParams& params = problem->params();
    for (auto [tensor, mean] :
         {std::pair{params.k, params.k_means}, {params.v, params.v_means}}) {
      auto* rows = static_cast<float*>(const_cast<void*>(tensor));
      auto* means_of = static_cast<float*>(const_cast<void*>(mean));
      for (int64_t key = 0; key < 512; ++key) {
        const int64_t block = key / kMeanBlockKeys;
        const float* first = rows + block * kMeanBlockKeys * 64;
        std::memmove(rows + key * 64, first, 64 * sizeof(float));
        std::memmove(means_of + block * params.stride_mean_row, first,
                     64 * sizeof(float));
      }
    }
    problem->Run();
  }
  for (int64_t row = 0; row < 128; ++row) {
    // Scores of 20 at most, 640 keys: their roundings, as in Check.
    ASSERT_NEAR(means.lse(0, row), dense.lse(0, row), 1e-4);
    for (int64_t i = 0; i < 64; ++i) {
      ASSERT_NEAR(means.o(0, row, i), dense.o(0, row, i), 1e-4);
    }
  }
}

TEST(SparseAttentionCpu, ARowWithoutKeysIsZeroAndMinusInfinity) {
  for (DType dtype : kDTypes) {
    std::mt19937 random(5);
    Problem problem(
        {.dtype = dtype},
        RandomPlan(
            {.q_begin = 64, .q_len = 128, .kv_len = 192, .empty_cells = 1.0},
            random),
        6);
    problem.Run();
    EXPECT_EQ(problem.lse(0, 0), -kInf);
    EXPECT_EQ(problem.o(2, 127, 5), 0.0f);
    problem.Check();
  }
}

// A range that begins after the first rows of its tile: those rows see no key
// of it, though the tile does.
TEST(SparseAttentionCpu, RowsBeforeTheirTilesOnlyRangeSeeNothing) {
  for (DType dtype : kDTypes) {
    TilePlan plan = Dense(0, 64, 64);
    plan.ranges[0].begin = 20;
    Problem problem({.dtype = dtype}, plan, 7);
    problem.Run();
    EXPECT_EQ(problem.lse(0, 19), -kInf);
    EXPECT_GT(problem.lse(0, 20), -kInf);
    problem.Check();
  }
}

TEST(SparseAttentionCpu, HugeScoresDoNotOverflow) {
  for (DType dtype : kDTypes) {
    Problem problem({.dtype = dtype}, Dense(0, 600, 600), 8, /*q_size=*/300.0f);
    problem.Run();
    problem.Check();
  }
}

TEST(SparseAttentionCpu, NanInAKeyReachesTheRowsThatSeeIt) {
  for (DType dtype : kDTypes) {
    Problem problem({.dtype = dtype}, Dense(0, 200, 200), 9);
    auto* k = static_cast<char*>(const_cast<void*>(problem.params().k));
    std::memset(k + 150 * 64 * SizeOf(dtype), 0xff, SizeOf(dtype));
    problem.Run();
    EXPECT_TRUE(std::isnan(problem.o(0, 150, 0)));
    EXPECT_TRUE(std::isnan(problem.lse(0, 199)));
    EXPECT_FALSE(std::isnan(problem.o(0, 149, 0)));
  }
}

TEST(SparseAttentionCpu, ThreadsDoNotChangeTheResult) {
  std::mt19937 random(10);
  const TilePlan plan = RandomPlan(
      {.q_begin = 100, .q_len = 500, .kv_len = 650, .num_columns = 100},
      random);
  const int before = omp_get_max_threads();
  for (DType dtype : kDTypes) {
    omp_set_num_threads(1);
    Problem one({.dtype = dtype, .num_q_heads = 6, .num_kv_heads = 2}, plan,
                11);
    one.Run();
    for (int threads : {2, 7}) {
      omp_set_num_threads(threads);
      Problem many({.dtype = dtype, .num_q_heads = 6, .num_kv_heads = 2}, plan,
                   11);
      many.Run();
      EXPECT_EQ(many.o_bytes(), one.o_bytes()) << threads;
      EXPECT_EQ(many.lse_values(), one.lse_values()) << threads;
    }
    EXPECT_EQ(omp_get_max_threads(), 7);  // the caller's setting is untouched
  }
  omp_set_num_threads(before);
}

TEST(SparseAttentionCpu, CallersMayRunAtTheSameTimeAndInParallelRegions) {
  const TilePlan plan = Dense(0, 300, 300);
  Problem expected({}, plan, 12);
  expected.Run();
  std::vector<std::thread> threads;
  std::vector<int> equal(3);
  for (int& result : equal) {
    threads.emplace_back([&] {
      Problem problem({}, plan, 12);
      for (int i = 0; i < 5; ++i) problem.Run();
      result = problem.o_bytes() == expected.o_bytes();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ::testing::Each(1));
  int nested_equal = 0;
#pragma omp parallel num_threads(2) reduction(+ : nested_equal)
  {
    Problem problem({}, plan, 12);
    problem.Run();
    nested_equal += problem.o_bytes() == expected.o_bytes();
  }
  EXPECT_EQ(nested_equal, 2);
}

// Bits of a row do not depend on where the prefill resumed, nor on how many
// keys follow: what makes a cached prefix as good as a computed one.
TEST(SparseAttentionCpu, ARowDoesNotDependOnItsNeighbours) {
  constexpr int64_t kLen = 1000;
  for (DType dtype : kDTypes) {
    const Shape shape = {.dtype = dtype, .num_q_heads = 3, .num_kv_heads = 1};
    Problem whole(shape, Dense(0, kLen, kLen), 13);
    whole.Run();
    for (auto [q_begin, q_end, kv_len] :
         {std::tuple<int64_t, int64_t, int64_t>{937, kLen, kLen},
          {999, kLen, kLen},
          {0, 256, 256},
          {250, 300, 310},
          {500, 501, 501}}) {
      Problem part(shape, Dense(q_begin, q_end - q_begin, kv_len), 13);
      // The same tensors: the part reads K and V of the whole.
      const int64_t q_offset =
          q_begin * whole.params().stride_q_row * SizeOf(dtype);
      part.params().q = static_cast<const char*>(whole.params().q) + q_offset;
      part.params().k = whole.params().k;
      part.params().v = whole.params().v;
      part.params().stride_kv_head = whole.params().stride_kv_head;
      part.Run();
      for (int64_t row = q_begin; row < q_end; ++row) {
        for (int32_t head = 0; head < 3; ++head) {
          ASSERT_EQ(part.lse(head, row - q_begin), whole.lse(head, row)) << row;
          for (int64_t i = 0; i < 64; ++i) {
            ASSERT_EQ(part.o(head, row - q_begin, i), whole.o(head, row, i))
                << row;
          }
        }
      }
    }
  }
}

TEST(SparseAttentionCpu, PartsMergedByLogSumExpEqualTheWhole) {
  std::mt19937 random(14);
  const TilePlan plan = RandomPlan({.q_begin = 270,
                                    .q_len = 200,
                                    .kv_len = 470,
                                    .range_density = 0.1,
                                    .num_columns = 20,
                                    .means = 0.7},
                                   random);
  const auto [first_plan, second_plan] = overture::testing::Split(plan, random);
  for (DType dtype : kDTypes) {
    Problem whole({.dtype = dtype}, plan, 15);
    Problem first({.dtype = dtype}, first_plan, 15);
    Problem second({.dtype = dtype}, second_plan, 15);
    for (Problem* problem : {&whole, &first, &second}) problem->Run();
    // Each part's outputs, whole's as well, are rounded to the dtype and (bf16)
    // made of rounded weights: 4 unit roundoffs of values below 6 (normal
    // draws) in all; fp32 adds its sums, as in Check.
    const double tolerance = dtype == DType::kBF16 ? 4 * 0x1p-8 * 6 : 1e-4;
    for (int32_t head = 0; head < 3; ++head) {
      for (int64_t row = 0; row < plan.q_len; ++row) {
        const double a = first.lse(head, row);
        const double b = second.lse(head, row);
        const double max = std::max(a, b);
        const double lse =
            max + std::log(std::exp(a - max) + std::exp(b - max));
        ASSERT_NEAR(whole.lse(head, row), lse, 1e-4);
        for (int64_t i = 0; i < 64; ++i) {
          const double merged = first.o(head, row, i) * std::exp(a - lse) +
                                second.o(head, row, i) * std::exp(b - lse);
          ASSERT_NEAR(whole.o(head, row, i), merged, tolerance);
        }
      }
    }
  }
}

TEST(SparseAttentionCpu, NoQueriesAreNoWork) {
  TilePlan plan = Dense(0, 1, 1);
  plan.q_len = 0;
  plan.range_offsets = plan.interval_offsets = {0};
  plan.ranges.clear();
  SparseAttentionParams params = {.num_q_heads = 1,
                                  .num_kv_heads = 1,
                                  .head_dim = 64,
                                  .scale = 1.0f,
                                  .plan = &plan};
  OVERTURE_EXPECT_OK(SparseAttentionCpu(params));
}

TEST(SparseAttentionCpu, RefusesWhatDoesNotFit) {
  const auto refuses = [](const char* message, auto&& change) {
    Problem problem({.num_q_heads = 4, .num_kv_heads = 2}, Dense(0, 100, 100),
                    16);
    change(problem.params(), problem.plan());
    EXPECT_THAT(
        SparseAttentionCpu(problem.params()),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  using P = SparseAttentionParams;
  refuses("dtype is f16", [](P& p, TilePlan&) { p.dtype = DType::kF16; });
  refuses("head_dim is 72", [](P& p, TilePlan&) { p.head_dim = 72; });
  refuses("num_q_heads is 5", [](P& p, TilePlan&) { p.num_q_heads = 5; });
  refuses("num_kv_heads is 0", [](P& p, TilePlan&) { p.num_kv_heads = 0; });
  refuses("scale is 0", [](P& p, TilePlan&) { p.scale = 0; });
  refuses("null", [](P& p, TilePlan&) { p.v = nullptr; });
  refuses("plan is null", [](P& p, TilePlan&) { p.plan = nullptr; });
  refuses("num_lists is 3", [](P&, TilePlan& plan) { plan.num_lists = 3; });
  refuses("kv_len is 99", [](P&, TilePlan& plan) { plan.kv_len = 99; });
  refuses("range_offsets",
          [](P&, TilePlan& plan) { plan.range_offsets.pop_back(); });
  refuses("offset of cell",
          [](P&, TilePlan& plan) { plan.range_offsets.back() = 1000; });
  refuses("ranges begin is -5",
          [](P&, TilePlan& plan) { plan.ranges[0].begin = -5; });
  refuses("ranges begin is 100",
          [](P&, TilePlan& plan) { plan.ranges[0].begin = 100; });
  refuses("columns entry is 100", [](P&, TilePlan& plan) {
    plan.columns = {100};
    plan.column_offsets.back() = 1;
  });
  const auto refuses_means = [&](const char* message,
                                 std::vector<int64_t> offsets, int32_t count) {
    refuses(message, [&](P&, TilePlan& plan) {
      plan.mean_offsets = offsets;
      plan.mean_blocks = {{.begin = 0, .count = count}};
    });
  };
  refuses_means("mean_offsets is 2", {0, 1}, 0);
  refuses_means("mean_offsets of cell", {0, 0, 2}, 0);
  refuses_means("mean_blocks begin is 0", {0, 0, 1}, 1);
  refuses("k_means or v_means is null", [](P& p, TilePlan& plan) {
    plan.mean_blocks = {{.begin = 0, .count = 0}};
    p.v_means = nullptr;
  });
  refuses("intervals begin is 0", [](P&, TilePlan& plan) {
    plan.intervals = {{.begin = 0, .count = 1}};
    plan.interval_offsets.back() = 1;
  });
}

}  // namespace
}  // namespace overture::kernels
