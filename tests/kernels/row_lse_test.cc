#include "kernels/row_lse/row_lse.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/cuda/stream.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/device_copy.h"
#include "tests/support/row_lse_problem.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::RowLseProblem;
using ::overture::testing::RowLseSize;
using ::overture::testing::StatusIs;
using ::overture::testing::ToDevice;
using ::overture::testing::ToHost;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RowLseGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    OVERTURE_ASSERT_OK_AND_ASSIGN(Stream stream, Stream::Create());
    stream_.emplace(std::move(stream));
  }

  // Outputs and scratch start as NaNs.
  absl::Status Run(RowLseProblem* problem, int64_t scratch_missing = 0) {
    RowLseParams params = problem->Params();
    const auto q = ToDevice(problem->q16(), *stream_);
    const auto k = ToDevice(problem->k16(), *stream_);
    auto lse = ToDevice(std::vector<float>(problem->lse.size(), NAN), *stream_);
    const int64_t bytes =
        RowLseScratchBytes(params.num_rows(), params.num_q_heads,
                           params.num_kv_heads) -
        scratch_missing;
    auto scratch = ToDevice(std::vector<float>((bytes + 3) / 4, NAN), *stream_);
    params.q = q.data();
    params.k = k.data();
    params.lse = lse.data();
    OVERTURE_RETURN_IF_ERROR(
        LaunchRowLse(params, scratch.data(), bytes, stream_->get()));
    problem->lse = ToHost(lse, *stream_);
    return absl::OkStatus();
  }

  std::optional<Stream> stream_;
};

TEST_F(RowLseGpu, EqualsTheDefinition) {
  // Fewer rows than a warp has, as many, and several blocks of them; groups of
  // one, of seven; odd lengths, a run's last unit cut.
  for (const RowLseSize& size : std::vector<RowLseSize>{
           {.kv_len = 1},
           {.kv_len = 37, .q_heads = 4, .kv_heads = 2, .num_rows = 3},
           {.kv_len = 1000,
           .q_heads = 8,
           .kv_heads = 2,
           .head_dim = 128,
           .num_rows = 8},
           {.kv_len = 5000,
           .q_heads = 7,
           .kv_heads = 1,
           .head_dim = 96,
           .num_rows = 64},
           {.kv_len = 70001,
           .q_heads = 8,
           .kv_heads = 2,
           .head_dim = 128,
           .num_rows = 9}}) {
    SCOPED_TRACE(size.kv_len);
    RowLseSize bf16 = size;
    bf16.dtype = DType::kBF16;
    RowLseProblem problem(bf16);
    OVERTURE_ASSERT_OK(Run(&problem));
    problem.ExpectEqualsDefinition();
    // A second time gives the same bits.
    RowLseProblem again(bf16);
    OVERTURE_ASSERT_OK(Run(&again));
    EXPECT_EQ(again.lse, problem.lse);
  }
}

TEST_F(RowLseGpu, NamesWhatDoesNotFit) {
  RowLseProblem f32({.dtype = DType::kF32, .kv_len = 5});
  EXPECT_THAT(Run(&f32), StatusIs(absl::StatusCode::kUnimplemented,
                                  HasSubstr("takes bf16, got f32")));
  RowLseProblem dim({.dtype = DType::kBF16, .kv_len = 5, .head_dim = 80});
  EXPECT_THAT(Run(&dim),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("got 80")));
  RowLseProblem scratch({.dtype = DType::kBF16, .kv_len = 5});
  EXPECT_THAT(Run(&scratch, 1), StatusIs(absl::StatusCode::kResourceExhausted,
                                         HasSubstr("scratch has")));
}

TEST_F(RowLseGpu, RowsAreTakenWithTheirLse) {
  const int64_t num_rows = 5;
  const int64_t elements = 4 * 64;
  std::vector<BFloat16> q;
  for (int64_t i = 0; i < num_rows * elements; ++i) {
    q.push_back(BFloat16(static_cast<float>(i % 251)));
  }
  std::vector<float> lse;  // [4 heads, rows]
  for (int i = 0; i < 4 * num_rows; ++i) lse.push_back(static_cast<float>(i));
  const auto device_q = ToDevice(q, *stream_);
  const auto device_lse = ToDevice(lse, *stream_);
  auto out_q = ToDevice(std::vector<BFloat16>(2 * elements), *stream_);
  auto out_lse = ToDevice(std::vector<float>(2 * 4, NAN), *stream_);
  const std::vector<int64_t> rows = {1, 4};
  TakeRowsParams params = {.q = device_q.data(),
                           .lse = device_lse.data(),
                           .num_rows = num_rows,
                           .row_elements = elements,
                           .num_q_heads = 4,
                           .rows = rows,
                           .out_q = out_q.data(),
                           .out_lse = out_lse.data()};
  OVERTURE_ASSERT_OK(LaunchTakeRows(params, stream_->get()));
  EXPECT_THAT(ToHost(out_lse, *stream_),
              ElementsAre(1, 6, 11, 16, 4, 9, 14, 19));
  const std::vector<BFloat16> got = ToHost(out_q, *stream_);
  for (int64_t i = 0; i < 2 * elements; ++i) {
    ASSERT_EQ(got[i].bits, q[rows[i / elements] * elements + i % elements].bits)
        << i;
  }
  const std::vector<int64_t> beyond = {5};
  params.rows = beyond;
  EXPECT_THAT(LaunchTakeRows(params, stream_->get()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a row is 5, must be in [0, 5)")));
}

}  // namespace
}  // namespace overture::kernels
