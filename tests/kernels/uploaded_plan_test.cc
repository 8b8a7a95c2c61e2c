#include "kernels/sparse_attention/uploaded_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/selectors/static_plans.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;

TEST(UploadedPlanTest, CarriesThePlansSizes) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Stream stream, Stream::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(const TilePlan plan,
                                DensePlan({.q_begin = 100,
                                           .q_len = 300,
                                           .kv_len = 400,
                                           .tile_rows = 128,
                                           .tile_keys = 64}));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const UploadedPlan uploaded,
                                UploadedPlan::Upload(plan, 4, 2, stream));
  EXPECT_EQ(uploaded.plan().num_q_tiles, 4);
  EXPECT_EQ(uploaded.plan().q_begin, 100);
  EXPECT_EQ(uploaded.plan().kv_len, 400);
  EXPECT_NE(uploaded.plan().order, nullptr);
}

TEST(UploadedPlanTest, PassesOnWhatTheKernelCannotRun) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Stream stream, Stream::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(const TilePlan plan,
                                DensePlan({.q_len = 64, .kv_len = 64}));
  // Tiles of 64 rows without a pair of heads to pack.
  EXPECT_THAT(UploadedPlan::Upload(plan, 2, 2, stream),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace overture::kernels
