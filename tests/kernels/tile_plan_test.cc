#include "kernels/tile_plan.h"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/plan_cover.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Rows 100..199 of 200 keys, tiles of 64: three query tiles at 64, 128, 192.
// List 1 repeats list 0, which holds sinks, a column and the diagonal.
TilePlan ValidPlan() {
  TilePlan plan;
  plan.q_begin = 100;
  plan.q_len = 100;
  plan.kv_len = 200;
  plan.num_lists = 2;
  plan.range_offsets = {0};
  plan.interval_offsets = {0};
  plan.column_offsets = {0};
  for (int list = 0; list < 2; ++list) {
    for (const int32_t s : {64, 128, 192}) {
      plan.ranges.push_back({.begin = s, .num_tiles = 1});
      plan.range_offsets.push_back(plan.ranges.size());
      plan.intervals.push_back({.begin = 0, .count = 2});
      if (s > 64) plan.intervals.push_back({.begin = 2, .count = 1});
      plan.interval_offsets.push_back(plan.intervals.size());
    }
    for (const int32_t column : {0, 1, 70, 150}) plan.columns.push_back(column);
    plan.column_offsets.push_back(plan.columns.size());
  }
  return plan;
}

class BrokenPlanTest : public ::testing::Test {
 protected:
  TilePlan plan_ = ValidPlan();
};

TEST_F(BrokenPlanTest, TheUnbrokenPlanIsValid) {
  EXPECT_EQ(plan_.first_tile_begin(), 64);
  EXPECT_EQ(plan_.num_q_tiles(), 3);
  EXPECT_THAT(Validate(plan_), IsOk());
}

TEST_F(BrokenPlanTest, OverlappingRangesBreakI2) {
  // Tile 2 of list 1: [150, 214) and the diagonal at 192.
  plan_.ranges.insert(plan_.ranges.end() - 1, {.begin = 150, .num_tiles = 1});
  ++plan_.range_offsets.back();
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("list 1 tile 2"), HasSubstr("I2"))));
}

TEST_F(BrokenPlanTest, RangesOutOfOrderBreakI6) {
  plan_.ranges.push_back({.begin = 0, .num_tiles = 1});
  ++plan_.range_offsets.back();
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("I6")));
}

TEST_F(BrokenPlanTest, AColumnInsideARangeBreaksI2) {
  plan_.ranges[1] = {.begin = 64, .num_tiles = 2};  // swallows column 70
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("list 0 tile 1"), HasSubstr("I2"),
                             HasSubstr("column 70"))));
}

TEST_F(BrokenPlanTest, AColumnInsideALaterRangeBreaksI2) {
  // Two ranges within the span of one interval {0, 1, 70}.
  plan_.intervals[3] = {.begin = 0, .count = 3};
  plan_.intervals.erase(plan_.intervals.begin() + 4);
  for (size_t i = 3; i < plan_.interval_offsets.size(); ++i) {
    --plan_.interval_offsets[i];
  }
  ASSERT_THAT(Validate(plan_), IsOk());
  plan_.ranges.insert(plan_.ranges.begin() + 2, {.begin = 2, .num_tiles = 1});
  plan_.ranges.insert(plan_.ranges.begin() + 3, {.begin = 66, .num_tiles = 1});
  for (size_t i = 3; i < plan_.range_offsets.size(); ++i) {
    plan_.range_offsets[i] += 2;
  }
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("I2"), HasSubstr("range at 66"))));
}

TEST_F(BrokenPlanTest, ARowWithoutItsOwnKeyBreaksI3) {
  plan_.ranges[1].begin = 100;   // ends at 164, tile ends at 192
  plan_.intervals[2].count = 1;  // keeps column 150 out of the way
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("row 164"), HasSubstr("I3"))));
}

TEST_F(BrokenPlanTest, AGapBetweenOwnKeysBreaksI3) {
  plan_.tile_keys = 16;
  plan_.ranges[0] = {.begin = 96, .num_tiles = 2};
  plan_.ranges[1] = {.begin = 128, .num_tiles = 4};
  plan_.ranges[2] = {.begin = 192, .num_tiles = 1};
  plan_.ranges[3] = plan_.ranges[0];
  plan_.ranges[4] = plan_.ranges[1];
  plan_.ranges[5] = plan_.ranges[2];
  ASSERT_THAT(Validate(plan_), IsOk());
  plan_.ranges[1].num_tiles = 3;
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("row 176"), HasSubstr("I3"))));
}

TEST_F(BrokenPlanTest, AColumnOfItsOwnTileBreaksI4) {
  plan_.intervals[0].count = 3;  // column 70 in the tile at 64
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("list 0 tile 0"), HasSubstr("I4"))));
}

TEST_F(BrokenPlanTest, AKeyTileInTheFutureBreaksI5) {
  plan_.ranges[0].num_tiles = 2;  // its second tile starts at e = 128
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("list 0 tile 0"), HasSubstr("I5"))));
}

TEST_F(BrokenPlanTest, ARangeMayRunPastItsTileAndPastTheKeys) {
  plan_.ranges[2] = {.begin = 150, .num_tiles = 2};  // 150..277, e = 256
  plan_.intervals[4].count = 1;
  EXPECT_THAT(Validate(plan_), IsOk());
}

TEST_F(BrokenPlanTest, UnsortedOrRepeatedColumnsBreakI6) {
  plan_.columns[1] = 0;
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("I6")));
  plan_.columns[1] = 71;
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("I6")));
}

TEST_F(BrokenPlanTest, AColumnPastTheKeysBreaksI6) {
  plan_.columns.back() = 200;
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("list 1")));
}

TEST_F(BrokenPlanTest, OverlappingIntervalsBreakI6) {
  plan_.intervals[2].begin = 1;
  plan_.intervals[2].count = 2;
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("I6")));
}

// Corrects blocks in the last cell alone.
void Correct(TilePlan& plan, std::vector<BlockInterval> blocks) {
  plan.mean_offsets.assign(plan.num_cells() + 1, 0);
  plan.mean_offsets.back() = static_cast<int64_t>(blocks.size());
  plan.mean_blocks = std::move(blocks);
}

TEST_F(BrokenPlanTest, ACorrectedBlockHoldsNoKeptKey) {
  // The tile at 448 sees columns 5 and 390, [300, 364) and its diagonal.
  TilePlan plan;
  plan.q_begin = 448;
  plan.q_len = 8;
  plan.kv_len = 456;
  plan.num_lists = 1;
  plan.range_offsets = {0, 2};
  plan.ranges = {{.begin = 300, .num_tiles = 1},
                 {.begin = 448, .num_tiles = 1}};
  plan.interval_offsets = {0, 2};
  plan.intervals = {{.begin = 0, .count = 1}, {.begin = 2, .count = 1}};
  plan.column_offsets = {0, 3};
  plan.columns = {5, 130, 390};
  Correct(plan, {{.begin = 1, .count = 1}});
  EXPECT_THAT(Validate(plan), IsOk());  // column 130 is not this tile's
  const auto breaks_i2 = [&](int32_t block, const char* key) {
    Correct(plan, {{.begin = block, .count = 1}});
    EXPECT_THAT(Validate(plan),
                StatusIs(absl::StatusCode::kInternal,
                         AllOf(HasSubstr("I2"), HasSubstr(key))));
  };
  breaks_i2(0, "key 5 ");
  breaks_i2(2, "key 300 ");
  plan.q_begin = 640;
  plan.kv_len = 648;
  plan.ranges.back().begin = 640;
  breaks_i2(3, "key 390 ");
  Correct(plan, {{.begin = 1, .count = 1}, {.begin = 4, .count = 1}});
  EXPECT_THAT(Validate(plan), IsOk());
  EXPECT_EQ(Cost(plan).means, 2);
}

TEST_F(BrokenPlanTest, ACorrectedBlockEndsBeforeItsTile) {
  plan_.interval_offsets.assign(plan_.interval_offsets.size(), 0);
  plan_.intervals.clear();
  Correct(plan_, {{.begin = 0, .count = 1}});
  EXPECT_THAT(Validate(plan_), IsOk());
  Correct(plan_, {{.begin = 0, .count = 2}});  // to 256, the tile begins at 192
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("list 1 tile 2"), HasSubstr("I4"))));
  Correct(plan_, {{.begin = 0, .count = 1}, {.begin = 0, .count = 1}});
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("I6")));
  Correct(plan_, {{.begin = 0, .count = 0}});
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("I6")));
  plan_.mean_offsets.pop_back();
  EXPECT_THAT(Validate(plan_), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("mean_offsets.size()")));
}

TEST_F(BrokenPlanTest, EmptyRangesAreRefused) {
  plan_.ranges[0].num_tiles = 0;
  EXPECT_THAT(Validate(plan_),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("0 tiles")));
}

TEST_F(BrokenPlanTest, AnIntervalOutsideTheListIsInvalid) {
  plan_.intervals.back() = {.begin = 3, .count = 2};
  EXPECT_THAT(Validate(plan_), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("list 1 tile 2")));
  plan_.intervals.back() = {.begin = -1, .count = 2};
  EXPECT_THAT(Validate(plan_), StatusIs(absl::StatusCode::kInvalidArgument));
  plan_.intervals.back() = {.begin = 2,
                            .count = std::numeric_limits<int32_t>::max()};
  EXPECT_THAT(Validate(plan_), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(BrokenPlanTest, OffsetsThatDoNotFitTheirArraysAreInvalid) {
  TilePlan plan = plan_;
  plan.range_offsets.pop_back();
  EXPECT_THAT(Validate(plan), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("range_offsets.size()")));
  plan = plan_;
  plan.interval_offsets.back() += 1;
  EXPECT_THAT(Validate(plan), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("interval_offsets.back()")));
  plan = plan_;
  plan.column_offsets[0] = 1;
  EXPECT_THAT(Validate(plan), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("column_offsets[0]")));
  plan = plan_;
  plan.range_offsets[1] = 5;
  EXPECT_THAT(Validate(plan), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("not ascending")));
}

TEST_F(BrokenPlanTest, ShapesThatDoNotFitAreInvalid) {
  const auto field = [](auto member, auto value) {
    TilePlan plan = ValidPlan();
    plan.*member = value;
    return Validate(plan);
  };
  const auto invalid = [](const char* name) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name));
  };
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(field(&TilePlan::tile_rows, 0), invalid("tile_rows"));
  EXPECT_THAT(field(&TilePlan::tile_keys, -1), invalid("tile_keys"));
  EXPECT_THAT(field(&TilePlan::num_lists, 0), invalid("num_lists"));
  EXPECT_THAT(field(&TilePlan::q_begin, -1), invalid("q_begin"));
  EXPECT_THAT(field(&TilePlan::q_len, 0), invalid("q_len"));
  EXPECT_THAT(field(&TilePlan::q_len, kHuge), invalid("kv_len"));
  EXPECT_THAT(field(&TilePlan::q_begin, kHuge), invalid("kv_len"));
  EXPECT_THAT(field(&TilePlan::kv_len, 199), invalid("kv_len"));
  EXPECT_THAT(field(&TilePlan::kv_len, int64_t{1} << 31), invalid("kv_len"));
}

TEST(CostTest, CountsTilesColumnsAndOnlyPairsThatExist) {
  const TilePlan plan = ValidPlan();
  const PlanCost cost = Cost(plan);
  EXPECT_EQ(cost.key_tiles, 6);
  EXPECT_EQ(cost.columns, 2 * (2 + 3 + 3));
  // Rows r = 100..199 see r + 1 keys each.
  const double causal = 2 * (101 + 200) * 100 / 2;
  const double computed = testing::PlanCover(plan, 0).NumPairs() +
                          testing::PlanCover(plan, 1).NumPairs();
  EXPECT_DOUBLE_EQ(cost.density, computed / causal);
}

TEST(CostTest, SizeIsThatOfTheArrays) {
  const TilePlan plan = ValidPlan();
  EXPECT_EQ(plan.SizeBytes(), 7 * 8 + 6 * 8 + 7 * 8 + 10 * 8 + 3 * 8 + 8 * 4);
}

TEST(CostTest, PairsOfAMillionTokensDoNotOverflow) {
  TilePlan plan;
  plan.q_len = plan.kv_len = int64_t{1} << 20;
  plan.tile_rows = 1 << 20;
  plan.num_lists = 64;
  plan.column_offsets.assign(65, 0);
  plan.range_offsets = {0};
  plan.interval_offsets.assign(65, 0);
  for (int list = 0; list < 64; ++list) {
    plan.ranges.push_back({.begin = 0, .num_tiles = 1 << 14});
    plan.range_offsets.push_back(list + 1);
  }
  ASSERT_THAT(Validate(plan), IsOk());
  EXPECT_EQ(Cost(plan).density, 1.0);
  EXPECT_EQ(Cost(plan).key_tiles, int64_t{1} << 20);
}

}  // namespace
}  // namespace overture::kernels
