#include "kernels/probe_attention/probe_attention_cpu.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

struct Size {
  int64_t kv_len = 0;
  int32_t rows = 0;
  int32_t window = 0;
  int32_t q_heads = 1;
  int32_t kv_heads = 1;
  int32_t head_dim = 64;
  DType dtype = DType::kF32;
};

// Inputs of one call, q as [row, head, dim] and k as [head, row, dim] with a
// gap after every row, and its outputs.
class Problem {
 public:
  Problem(const Size& size, std::mt19937& rng) : size_(size) {
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>* values, int64_t count) {
      values->resize(count);
      for (float& v : *values) {
        v = normal(rng);
        if (size.dtype == DType::kBF16) v = static_cast<float>(BFloat16(v));
      }
    };
    fill(&q_, stride_q_row() * size.rows);
    fill(&k_, stride_k_head() * size.kv_heads);
    for (const float v : q_) q16_.push_back(BFloat16(v));
    for (const float v : k_) k16_.push_back(BFloat16(v));
    column_sums.assign(size.q_heads * size.kv_len, -1);
    diagonal_sums.assign(size.q_heads * size.kv_len, -1);
    window_votes.assign(size.kv_heads * size.kv_len, -1);
  }

  int64_t stride_q_row() const { return size_.q_heads * size_.head_dim + 5; }
  int64_t stride_k_row() const { return size_.head_dim + 3; }
  int64_t stride_k_head() const { return size_.kv_len * stride_k_row(); }

  ProbeAttentionParams Params() {
    const bool f32 = size_.dtype == DType::kF32;
    return {.dtype = size_.dtype,
            .q = f32 ? static_cast<const void*>(q_.data()) : q16_.data(),
            .k = f32 ? static_cast<const void*>(k_.data()) : k16_.data(),
            .stride_q_row = stride_q_row(),
            .stride_q_head = size_.head_dim,
            .stride_k_row = stride_k_row(),
            .stride_k_head = stride_k_head(),
            .num_q_heads = size_.q_heads,
            .num_kv_heads = size_.kv_heads,
            .head_dim = size_.head_dim,
            .num_rows = size_.rows,
            .kv_len = size_.kv_len,
            .scale = 1.0f / std::sqrt(static_cast<float>(size_.head_dim)),
            .column_sums = column_sums.data(),
            .diagonal_sums = diagonal_sums.data(),
            .window_votes = window_votes.data(),
            .window_rows = size_.window};
  }

  // The definition, a double loop in double; compares all three outputs.
  void ExpectEqualsDefinition() const {
    const int64_t n = size_.kv_len, d = size_.head_dim;
    const int32_t group = size_.q_heads / size_.kv_heads;
    const double scale = 1.0 / std::sqrt(static_cast<double>(d));
    std::vector<double> columns(column_sums.size()), votes(window_votes.size()),
        diagonals(column_sums.size());
    double max_logit_mass = 0;  // largest sum_j |q_j k_j| * scale
    for (int32_t h = 0; h < size_.q_heads; ++h) {
      for (int64_t i = 0; i < size_.rows; ++i) {
        const int64_t row = n - size_.rows + i;
        std::vector<double> p(row + 1);
        double max = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int64_t c = 0; c <= row; ++c) {
          double mass = 0;
          for (int64_t j = 0; j < d; ++j) {
            const double term =
                double{q_[i * stride_q_row() + h * d + j]} *
                k_[h / group * stride_k_head() + c * stride_k_row() + j];
            p[c] += term * scale;
            mass += std::abs(term) * scale;
          }
          max = std::max(max, p[c]);
          max_logit_mass = std::max(max_logit_mass, mass);
        }
        for (double& x : p) sum += x = std::exp(x - max);
        for (int64_t c = 0; c <= row; ++c) {
          columns[h * n + c] += p[c] / sum;
          diagonals[h * n + row - c] += p[c] / sum;
          if (i >= size_.rows - size_.window) {
            votes[h / group * n + c] += p[c] / sum / group;
          }
        }
      }
    }
    // A logit, a sum of d products and of a scaled query in fp32, is off by at
    // most (d + 1) eps times the mass of its terms. That, twice (row maximum),
    // is the relative error of exp, which adds 2 ULP itself plus one rounding
    // of its argument, at most 87 eps; the row sum, as all its terms are
    // positive, has the same relative error again plus n / 16 + 16 additions;
    // outputs add `rows` positive terms. exp flushes below e^-87: no term there
    // reaches 1e-37.
    const double eps = std::numeric_limits<float>::epsilon() / 2;
    const double one_term = 2 * (d + 1) * eps * max_logit_mass + (4 + 87) * eps;
    const double tolerance =
        2 * one_term + (n / 16.0 + 32 + size_.rows + 4) * eps;
    ExpectNear("column_sums", column_sums, columns, tolerance);
    ExpectNear("diagonal_sums", diagonal_sums, diagonals, tolerance);
    ExpectNear("window_votes", window_votes, votes, tolerance);
  }

  std::vector<float> column_sums, diagonal_sums, window_votes;

 private:
  static void ExpectNear(const char* name, const std::vector<float>& got,
                         const std::vector<double>& want, double tolerance) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], tolerance * want[i] + 1e-30)
          << name << "[" << i << "]";
    }
  }

  Size size_;
  std::vector<float> q_, k_;
  std::vector<BFloat16> q16_, k16_;
};

TEST(ProbeAttentionCpuTest, EqualsItsDefinition) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 rng(seed);
  for (const Size& size : std::vector<Size>{
           {.kv_len = 1, .rows = 1, .window = 1},
           {.kv_len = 2, .rows = 2, .window = 1, .q_heads = 2},
           {.kv_len = 15, .rows = 3, .window = 2},
           {.kv_len = 16, .rows = 16, .window = 16},
           {.kv_len = 64, .rows = 64, .window = 32, .q_heads = 4},
           {.kv_len = 65, .rows = 64, .window = 64, .head_dim = 80},
           {.kv_len = 511, .rows = 64, .window = 1, .head_dim = 96},
           {.kv_len = 513, .rows = 7, .window = 7, .q_heads = 6, .kv_heads = 2},
           {.kv_len = 2049, .rows = 64, .window = 32, .q_heads = 3},
           {.kv_len = 4200, .rows = 5, .window = 3, .head_dim = 128}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(absl::StrCat("kv_len ", size.kv_len, " rows ", size.rows,
                                " ", Name(dtype)));
      Size typed = size;
      typed.dtype = dtype;
      Problem problem(typed, rng);
      ASSERT_THAT(ProbeAttentionCpu(problem.Params()), IsOk());
      ASSERT_NO_FATAL_FAILURE(problem.ExpectEqualsDefinition());
    }
  }
}

TEST(ProbeAttentionCpuTest, AllMassIsCountedOnceInEachSum) {
  std::mt19937 rng(1);
  const Size size = {
      .kv_len = 700, .rows = 64, .window = 20, .q_heads = 4, .kv_heads = 2};
  Problem problem(size, rng);
  ASSERT_THAT(ProbeAttentionCpu(problem.Params()), IsOk());
  const auto total = [](const std::vector<float>& v, int64_t head) {
    double sum = 0;
    for (int64_t i = 0; i < 700; ++i) sum += v[head * 700 + i];
    return sum;
  };
  // Each of 64 (20) rows sums to 1; 700 + 64 roundings of 2^-24 each.
  for (int64_t head = 0; head < 4; ++head) {
    EXPECT_NEAR(total(problem.column_sums, head), 64, 64 * 764 * 6e-8);
    EXPECT_NEAR(total(problem.diagonal_sums, head), 64, 64 * 764 * 6e-8);
  }
  for (int64_t head = 0; head < 2; ++head) {
    EXPECT_NEAR(total(problem.window_votes, head), 20, 20 * 764 * 6e-8);
  }
}

TEST(ProbeAttentionCpuTest, UniformKeysGiveTheHarmonicColumns) {
  // Equal logits: row r gives 1 / (r + 1) to each of its keys.
  const std::vector<float> q(3 * 8, 0.0f), k(10 * 8, 1.0f);
  std::vector<float> columns(10), diagonals(10), votes(10);
  ASSERT_THAT(ProbeAttentionCpu({.dtype = DType::kF32,
                                 .q = q.data(),
                                 .k = k.data(),
                                 .stride_q_row = 8,
                                 .stride_k_row = 8,
                                 .num_q_heads = 1,
                                 .num_kv_heads = 1,
                                 .head_dim = 8,
                                 .num_rows = 3,
                                 .kv_len = 10,
                                 .scale = 1,
                                 .column_sums = columns.data(),
                                 .diagonal_sums = diagonals.data(),
                                 .window_votes = votes.data(),
                                 .window_rows = 1}),
              IsOk());
  const float all = 1 / 8.f + 1 / 9.f + 1 / 10.f;
  for (int i = 0; i < 8; ++i) {
    EXPECT_FLOAT_EQ(columns[i], all);
    EXPECT_FLOAT_EQ(diagonals[i], all);
  }
  EXPECT_FLOAT_EQ(columns[8], 1 / 9.f + 1 / 10.f);
  EXPECT_FLOAT_EQ(columns[9], 1 / 10.f);
  EXPECT_FLOAT_EQ(diagonals[8], 1 / 9.f + 1 / 10.f);
  EXPECT_FLOAT_EQ(diagonals[9], 1 / 10.f);
  for (const float vote : votes) EXPECT_FLOAT_EQ(vote, 1 / 10.f);
}

TEST(ProbeAttentionCpuTest, AScaleOfZeroIsUniformWhateverMemoryHeld) {
  constexpr int64_t kKeys = 400, kDim = 64;
  constexpr int32_t kRows = 64;
  const std::vector<float> q(kRows * kDim, 1.0f), k(kKeys * kDim, 1.0f);
  std::vector<float> columns(kKeys);
  // What this frees the call will most likely get: 100 KiB, which the allocator
  // neither maps nor gives back.
  std::vector<float>(kRows * kKeys, NAN);
  ASSERT_THAT(ProbeAttentionCpu({.dtype = DType::kF32,
                                 .q = q.data(),
                                 .k = k.data(),
                                 .stride_q_row = kDim,
                                 .stride_k_row = kDim,
                                 .num_q_heads = 1,
                                 .num_kv_heads = 1,
                                 .head_dim = kDim,
                                 .num_rows = kRows,
                                 .kv_len = kKeys,
                                 .scale = 0,
                                 .column_sums = columns.data()}),
              IsOk());
  float all = 0;
  for (int row = kKeys - kRows; row < kKeys; ++row) all += 1.0f / (row + 1);
  EXPECT_NEAR(columns[0], all, 2 * kRows * 6e-8 * all);
  EXPECT_FLOAT_EQ(columns[kKeys - 1], 1.0f / kKeys);
}

TEST(ProbeAttentionCpuTest, LargeLogitsStayFinite) {
  // Logits 0 and 1e4: the far one takes all, the others flush to 0.
  std::vector<float> q(4, 100.0f), k(40 * 4, 0.0f), columns(40);
  std::fill_n(&k[17 * 4], 4, 25.0f);
  ProbeAttentionParams params = {.dtype = DType::kF32,
                                 .q = q.data(),
                                 .k = k.data(),
                                 .stride_q_row = 4,
                                 .stride_k_row = 4,
                                 .num_q_heads = 1,
                                 .num_kv_heads = 1,
                                 .head_dim = 4,
                                 .num_rows = 1,
                                 .kv_len = 40,
                                 .scale = 1,
                                 .column_sums = columns.data()};
  ASSERT_THAT(ProbeAttentionCpu(params), IsOk());
  for (int c = 0; c < 40; ++c) EXPECT_EQ(columns[c], c == 17 ? 1.0f : 0.0f);
}

TEST(ProbeAttentionCpuTest, OutputsAreIndependentOfEachOther) {
  std::mt19937 rng(2);
  const Size size = {
      .kv_len = 300, .rows = 64, .window = 32, .q_heads = 4, .kv_heads = 2};
  Problem all(size, rng);
  ASSERT_THAT(ProbeAttentionCpu(all.Params()), IsOk());
  const std::vector<float> columns = all.column_sums,
                           diagonals = all.diagonal_sums,
                           votes = all.window_votes;
  const auto run = [&](bool column, bool diagonal, bool vote) {
    for (auto* v : {&all.column_sums, &all.diagonal_sums, &all.window_votes}) {
      std::fill(v->begin(), v->end(), -1.0f);
    }
    ProbeAttentionParams params = all.Params();
    if (!column) params.column_sums = nullptr;
    if (!diagonal) params.diagonal_sums = nullptr;
    if (!vote) {
      params.window_votes = nullptr;
      params.window_rows = 0;
    }
    ASSERT_THAT(ProbeAttentionCpu(params), IsOk());
  };
  run(true, false, false);
  EXPECT_EQ(all.column_sums, columns);
  EXPECT_THAT(all.diagonal_sums, Each(-1.0f));
  run(false, true, false);
  EXPECT_EQ(all.diagonal_sums, diagonals);
  EXPECT_THAT(all.window_votes, Each(-1.0f));
  run(false, false, true);
  EXPECT_EQ(all.window_votes, votes);
  EXPECT_THAT(all.column_sums, Each(-1.0f));
}

TEST(ProbeAttentionCpuTest, VotesOfAWindowDoNotDependOnTheOtherRows) {
  // 64 probe rows or only the window's 32: the same rows, the same votes.
  std::mt19937 rng(3);
  const Size size = {
      .kv_len = 900, .rows = 64, .window = 32, .q_heads = 2, .kv_heads = 1};
  Problem problem(size, rng);
  ASSERT_THAT(ProbeAttentionCpu(problem.Params()), IsOk());
  const std::vector<float> votes = problem.window_votes;
  ProbeAttentionParams params = problem.Params();
  params.q = static_cast<const float*>(params.q) + 32 * params.stride_q_row;
  params.num_rows = 32;
  ASSERT_THAT(ProbeAttentionCpu(params), IsOk());
  // Only the product may round differently for another number of rows: 2 (d +
  // 1) eps on logits whose terms weigh less than 64 (see above), twice.
  for (size_t i = 0; i < votes.size(); ++i) {
    ASSERT_NEAR(problem.window_votes[i], votes[i],
                4 * 65 * 6e-8 * 64 * votes[i]);
  }
}

TEST(ProbeAttentionCpuTest, BitsDoNotDependOnTheNumberOfThreads) {
  std::mt19937 rng(4);
  const Size size = {
      .kv_len = 3000, .rows = 64, .window = 32, .q_heads = 6, .kv_heads = 2};
  Problem problem(size, rng);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  ASSERT_THAT(ProbeAttentionCpu(problem.Params()), IsOk());
  const std::vector<float> columns = problem.column_sums,
                           diagonals = problem.diagonal_sums,
                           votes = problem.window_votes;
  omp_set_num_threads(5);
  ASSERT_THAT(ProbeAttentionCpu(problem.Params()), IsOk());
  omp_set_num_threads(threads);
  EXPECT_EQ(problem.column_sums, columns);
  EXPECT_EQ(problem.diagonal_sums, diagonals);
  EXPECT_EQ(problem.window_votes, votes);
}

TEST(ProbeAttentionCpuTest, FieldsOutsideTheirLimitsAreNamed) {
  std::mt19937 rng(5);
  Problem problem({.kv_len = 10, .rows = 4, .window = 2, .q_heads = 4}, rng);
  const auto expect = [&](auto change, const char* message) {
    ProbeAttentionParams params = problem.Params();
    change(params);
    EXPECT_THAT(
        ProbeAttentionCpu(params),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  using P = ProbeAttentionParams;
  expect([](P& p) { p.dtype = DType::kF16; }, "dtype is 2");
  expect([](P& p) { p.num_kv_heads = 0; }, "num_kv_heads is 0");
  expect([](P& p) { p.num_q_heads = 0; }, "num_q_heads is 0");
  expect([](P& p) { p.num_kv_heads = 3; }, "multiple of num_kv_heads = 3");
  expect([](P& p) { p.head_dim = 0; }, "head_dim is 0");
  expect([](P& p) { p.kv_len = 0; }, "kv_len is 0");
  expect([](P& p) { p.kv_len = int64_t{1} << 31; }, "kv_len is 2147483648");
  expect([](P& p) { p.num_rows = 0; }, "num_rows is 0");
  expect([](P& p) { p.num_rows = 11; }, "num_rows is 11, must be 1 .. kv_len");
  expect([](P& p) { p.window_rows = 0; }, "window_rows is 0");
  expect([](P& p) { p.window_rows = 5; }, "window_rows is 5");
  expect([](P& p) { p.q = nullptr; }, "q is 0, must be not null");
  expect([](P& p) { p.k = nullptr; }, "k is 0, must be not null");
  expect([](P& p) { p.scale = std::nanf(""); }, "scale is nan");
}

}  // namespace
}  // namespace overture::kernels
