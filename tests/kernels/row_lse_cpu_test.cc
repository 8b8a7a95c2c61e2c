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
