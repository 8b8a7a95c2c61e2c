#include "kernels/sparse_attention/expanded_plan.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/selectors/static_plans.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two lists over rows [0, 256), i.e. two query tiles.
TilePlan TwoListPlan() {
  TilePlan plan;
  plan.tile_rows = kGpuTileRows;
  plan.tile_keys = kGpuTileKeys;
  plan.q_len = 256;
  plan.kv_len = 256;
  plan.num_lists = 2;
  plan.range_offsets = {0, 1, 3, 4, 5};
  plan.ranges = {{0, 2}, {10, 1}, {128, 2}, {0, 2}, {128, 2}};
  plan.interval_offsets = {0, 0, 2, 2, 3};
  plan.intervals = {{0, 1}, {2, 1}, {0, 1}};
  plan.column_offsets = {0, 3, 4};
  plan.columns = {3, 40, 90, 7};
  return plan;
}

TEST(ExpandedPlanTest, WritesOutTilesAndColumnsOfEveryCell) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ExpandedPlan expanded,
                                ExpandPlan(TwoListPlan(), 4, 2));
  EXPECT_THAT(
      expanded.cells,
      ElementsAre(PlanCell{.range_end = 1, .column_begin = 0, .num_tiles = 2},
                  PlanCell{.range_end = 3,
                           .column_begin = 0,
                           .num_tiles = 3,
                           .num_columns = 2},
                  PlanCell{.range_end = 4, .column_begin = 2, .num_tiles = 2},
                  PlanCell{.range_end = 5,
                           .column_begin = 2,
                           .num_tiles = 2,
                           .num_columns = 1}));
  EXPECT_THAT(expanded.columns, ElementsAre(3, 90, 7));
}

TEST(ExpandedPlanTest, OrdersWorkByCostThenHeadsSideBySide) {
  // Costs: list 0 is 2 and 4, list 1 is 2 and 3; heads 0 and 1 use list 0.
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ExpandedPlan expanded,
                                ExpandPlan(TwoListPlan(), 4, 2));
  EXPECT_THAT(expanded.order, ElementsAre(1, 3, 5, 7, 0, 2, 4, 6));
}

TEST(ExpandedPlanTest, EveryItemStandsInTheOrderOnce) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const TilePlan plan,
                                DensePlan({.q_begin = 1000,
                                           .q_len = 777,
                                           .kv_len = 1777,
                                           .tile_rows = kGpuTileRows,
                                           .tile_keys = kGpuTileKeys}));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ExpandedPlan expanded,
                                ExpandPlan(plan, 6, 2));
  const std::set<int32_t> items(expanded.order.begin(), expanded.order.end());
  EXPECT_EQ(items.size(), expanded.order.size());
  EXPECT_EQ(static_cast<int64_t>(items.size()), 6 * plan.num_q_tiles());
  EXPECT_EQ(*items.begin(), 0);
}

TEST(ExpandedPlanTest, CountsCorrectedBlocksAsGatheredKeys) {
  TilePlan plan = TwoListPlan();
  plan.mean_offsets = {0, 0, 0, 2, 2};  // cell 2, tile 0 of list 1
  plan.mean_blocks = {{.begin = 0, .count = 100}, {.begin = 200, .count = 60}};
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ExpandedPlan expanded,
                                ExpandPlan(plan, 4, 2));
  EXPECT_EQ(expanded.cells[1].num_means, 0);
  EXPECT_EQ(expanded.cells[2].num_means, 160);
  // Costs: list 0 is 2 and 4, list 1 is 5 and 3.
  EXPECT_THAT(expanded.order, ElementsAre(4, 6, 1, 3, 5, 7, 0, 2));
}

TEST(ExpandedPlanTest, HeadsOfAGroupPackByThePowerOfTwoInThem) {
  EXPECT_EQ(GpuTileRows(8, 32, 8), 32);
  EXPECT_EQ(GpuTileRows(1, 32, 8), 32);
  EXPECT_EQ(GpuTileRows(32, 32, 8), 128);  // each query head has its own list
  EXPECT_EQ(GpuTileRows(8, 8, 8), 128);
  EXPECT_EQ(GpuTileRows(2, 12, 2), 64);  // six heads: packs of two
  EXPECT_EQ(GpuTileRows(2, 6, 2), 128);
  EXPECT_EQ(GpuTileRows(1, 128, 1), 2);  // at most 64 heads
}

TEST(ExpandedPlanTest, PacksOfHeadsAreOneItem) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const TilePlan plan,
                                DensePlan({.q_begin = 10,
                                           .q_len = 60,
                                           .kv_len = 70,
                                           .tile_rows = 32,
                                           .tile_keys = kGpuTileKeys}));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ExpandedPlan expanded,
                                ExpandPlan(plan, 8, 2));
  // Three query tiles of 1, 1 and 2 key tiles; two packs of four heads.
  EXPECT_THAT(expanded.order, ElementsAre(2, 5, 1, 4, 0, 3));
}

TEST(ExpandedPlanTest, RefusesOtherTileShapesAndListCounts) {
  TilePlan plan = TwoListPlan();
  EXPECT_THAT(ExpandPlan(plan, 8, 4),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("num_lists is 2, must be 1, 4")));
  plan.tile_rows = 32;
  EXPECT_THAT(
      ExpandPlan(plan, 4, 2),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("32 x 64, the GPU kernel takes 128 x 64 or 64 x 64")));
}

}  // namespace
}  // namespace overture::kernels
