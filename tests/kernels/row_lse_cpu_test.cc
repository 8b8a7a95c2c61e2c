#include "kernels/row_lse/row_lse_cpu.h"

#include <omp.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/row_lse_problem.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::RowLseProblem;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

TEST(RowLseCpu, EqualsTheDefinition) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    // A block, runs and their ends; groups; rows in no order, row 0 among them.
    for (const auto& [kv_len, q_heads, kv_heads, head_dim] :
         {std::array<int, 4>{1, 1, 1, 64},
          {600, 6, 2, 64},
          {9001, 3, 1, 96},
          {4096, 2, 2, 7}}) {
      RowLseProblem problem({.dtype = dtype,
                             .kv_len = kv_len,
                             .q_heads = q_heads,
                             .kv_heads = kv_heads,
                             .head_dim = head_dim,
                             .num_rows = std::min(kv_len, 5)});
      SCOPED_TRACE(absl::StrCat(Name(dtype), ", ", kv_len, " keys"));
      ASSERT_THAT(RowLseCpu(problem.Params()), IsOk());
      problem.ExpectEqualsDefinition();
    }
  }
}

TEST(RowLseCpu, WeightsAreTheSoftmaxOfEachRow) {
  RowLseProblem problem(
      {.kv_len = 700, .q_heads = 4, .kv_heads = 2, .num_rows = 3});
  RowLseParams params = problem.Params();
  std::vector<float> weights(3 * 4 * 700, -1);
  params.weights = weights.data();
  ASSERT_THAT(RowLseCpu(params), IsOk());
  problem.ExpectEqualsDefinition();
  for (int64_t row = 0; row < 3 * 4; ++row) {
    const int64_t position = params.positions[row / 4];
    double sum = 0;
    for (int64_t key = 0; key < 700; ++key) {
      const float weight = weights[row * 700 + key];
      sum += weight;
      if (key > position) {
        ASSERT_EQ(weight, 0);
      }
    }
    // The lse, about 10, is rounded to 2^-20 of itself.
    EXPECT_NEAR(sum, 1, 1e-5);
    // Keys of one row differ as their logits do.
    const auto logit = [&](int64_t key) {
      double dot = 0;
      for (int64_t i = 0; i < 64; ++i) {
        dot += static_cast<const float*>(
                   params.q)[row / 4 * params.stride_q_row +
                             row % 4 * params.stride_q_head + i] *
               static_cast<const float*>(
                   params.k)[row % 4 / 2 * params.stride_k_head +
                             key * params.stride_k_row + i];
      }
      return dot * params.scale;
    };
    EXPECT_NEAR(std::log(weights[row * 700 + position] / weights[row * 700]),
                logit(position) - logit(0), 1e-4);
  }
}

TEST(RowLseCpu, DoesNotDependOnTheNumberOfThreads) {
  RowLseProblem problem({.kv_len = 9000, .q_heads = 2, .num_rows = 3});
  ASSERT_THAT(RowLseCpu(problem.Params()), IsOk());
  const std::vector<float> many = problem.lse;
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  EXPECT_THAT(RowLseCpu(problem.Params()), IsOk());
  omp_set_num_threads(before);
  EXPECT_EQ(problem.lse, many);
}

TEST(RowLseCpu, NamesTheFieldThatDoesNotFit) {
  RowLseProblem problem({.kv_len = 10});
  const auto expect = [&](auto change, const char* text) {
    RowLseParams params = problem.Params();
    change(params);
    EXPECT_THAT(RowLseCpu(params),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  const std::vector<int64_t> late = {10};
  const std::vector<int64_t> many(kMaxLseRows + 1);
  expect([&](auto& p) { p.positions = late; }, "a position is 10");
  expect([&](auto& p) { p.positions = many; }, "rows is 65");
  expect([&](auto& p) { p.positions = {}; }, "rows is 0");
  expect([](auto& p) { p.num_kv_heads = 0; }, "num_kv_heads is 0");
  expect([](auto& p) { p.num_q_heads = 0; }, "num_q_heads is 0");
  expect([](auto& p) { p.head_dim = 0; }, "head_dim is 0");
  expect([](auto& p) { p.kv_len = 0; }, "kv_len is 0");
  expect([](auto& p) { p.dtype = DType::kF16; }, "dtype is 2");
  expect([](auto& p) { p.scale = 0; }, "scale is 0");
  expect([](auto& p) { p.q = nullptr; }, "q is 0");
  expect([](auto& p) { p.k = nullptr; }, "k is 0");
  expect([](auto& p) { p.lse = nullptr; }, "lse is 0");
}

}  // namespace
}  // namespace overture::kernels
