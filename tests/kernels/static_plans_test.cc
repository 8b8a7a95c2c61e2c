#include "kernels/selectors/static_plans.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/plan_cover.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PlanCover;

std::string Describe(const PlanShape& s) {
  return absl::StrCat("rows [", s.q_begin, ", ", s.q_begin + s.q_len, ") of ",
                      s.kv_len, " keys, tile ", s.tile_rows, "x", s.tile_keys);
}

// Regular and irregular sizes, with and without a prefix, all tile shapes.
std::vector<PlanShape> Shapes() {
  std::vector<PlanShape> shapes;
  for (const auto& [rows, keys] :
       {std::pair{64, 64}, {128, 64}, {128, 128}, {64, 128}, {48, 80}}) {
    for (const auto& [begin, len, kv] : {std::tuple{0, 1, 1},
                                         {0, 63, 63},
                                         {0, 64, 64},
                                         {0, 65, 65},
                                         {0, 127, 127},
                                         {0, 129, 129},
                                         {0, 333, 333},
                                         {0, 256, 256},
                                         {0, 100, 301},
                                         {1, 1, 2},
                                         {63, 2, 65},
                                         {64, 64, 128},
                                         {100, 1, 101},
                                         {100, 201, 301},
                                         {129, 100, 400}}) {
      shapes.push_back({.q_begin = begin,
                        .q_len = len,
                        .kv_len = kv,
                        .tile_rows = rows,
                        .tile_keys = keys});
    }
  }
  return shapes;
}

TEST(DensePlanTest, CoversEveryCausalPairOnce) {
  for (const PlanShape& shape : Shapes()) {
    SCOPED_TRACE(Describe(shape));
    OVERTURE_ASSERT_OK_AND_ASSIGN(const TilePlan plan, DensePlan(shape));
    ASSERT_THAT(Validate(plan), IsOk());
    EXPECT_EQ(plan.num_lists, 1);
    const PlanCover cover(plan, 0);
    for (int64_t q = shape.q_begin; q < shape.q_begin + shape.q_len; ++q) {
      for (int64_t k = 0; k <= q; ++k) ASSERT_EQ(cover.Count(q, k), 1);
    }
    EXPECT_EQ(Cost(plan).density, 1.0);
    // Aligned tiles from key 0, none of them wholly after the rows.
    for (const KeyRange& range : plan.ranges) {
      EXPECT_EQ(range.begin, 0);
      EXPECT_LT((range.num_tiles - 1) * shape.tile_keys,
                shape.q_begin + shape.q_len);
    }
  }
}

TEST(AShapePlanTest, CoversItsDefinitionOnceWithinAlignedTiles) {
  for (const PlanShape& shape : Shapes()) {
    for (const auto& [initial, local] : {std::pair{0, 1},
                                         {1, 1},
                                         {10, 50},
                                         {64, 64},
                                         {65, 1},
                                         {100, 130},
                                         {128, 3968},
                                         {1000, 1}}) {
      SCOPED_TRACE(
          absl::StrCat(Describe(shape), ", A-shape ", initial, " + ", local));
      OVERTURE_ASSERT_OK_AND_ASSIGN(const TilePlan plan,
                                    AShapePlan(shape, initial, local));
      ASSERT_THAT(Validate(plan), IsOk());
      const PlanCover cover(plan, 0);
      const int64_t sink_end =
          (initial + shape.tile_keys - 1) / shape.tile_keys * shape.tile_keys;
      for (int64_t q = shape.q_begin; q < shape.q_begin + shape.q_len; ++q) {
        const int64_t s = q / shape.tile_rows * shape.tile_rows;
        const int64_t window = std::max<int64_t>(s - local + 1, 0) /
                               shape.tile_keys * shape.tile_keys;
        for (int64_t k = 0; k <= q; ++k) {
          if (q - k < local || k < initial) {
            ASSERT_EQ(cover.Count(q, k), 1) << "q " << q << " k " << k;
          }
          // Nothing beyond the rounded edges.
          ASSERT_EQ(cover.Count(q, k), k < sink_end || k >= window)
              << "q " << q << " k " << k;
        }
      }
    }
  }
}

TEST(AShapePlanTest, DenseRowsKeepAllAndTheLastMakeATriShape) {
  const PlanShape shape{
      .q_begin = 64, .q_len = 446, .kv_len = 600, .tile_rows = 128};
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const TilePlan plan,
      AShapePlan(shape, 1, 1, {.until = 256, .from = 508}));
  OVERTURE_ASSERT_OK(Validate(plan));
  const PlanCover cover(plan, 0);
  // The last row is 509: the tile from 384 on has a row at or after 508.
  for (int64_t q = 64; q < 510; ++q) {
    EXPECT_EQ(cover.Count(q, 64) == 1, q < 256 || q >= 384) << q;
  }
}

TEST(AShapePlanTest, SinkAndWindowMergeWhereTheyMeet) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const TilePlan plan,
      AShapePlan({.q_len = 320, .kv_len = 320}, /*num_initial=*/10,
                 /*num_local=*/65));
  // Windows start at 0, 0, 64, 128, 192: sink tile 0 meets the first three.
  EXPECT_THAT(plan.ranges,
              ElementsAre(KeyRange{0, 1}, KeyRange{0, 2}, KeyRange{0, 3},
                          KeyRange{0, 1}, KeyRange{128, 2}, KeyRange{0, 1},
                          KeyRange{192, 2}));
  EXPECT_THAT(plan.range_offsets, ElementsAre(0, 1, 2, 3, 5, 7));
}

TEST(AShapePlanTest, KeysOfARowDoNotDependOnWhereThePrefillResumed) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const TilePlan whole,
      AShapePlan({.q_len = 500, .kv_len = 500, .tile_rows = 128}, 20, 100));
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const TilePlan resumed,
      AShapePlan(
          {.q_begin = 300, .q_len = 200, .kv_len = 500, .tile_rows = 128}, 20,
          100));
  const PlanCover all(whole, 0), tail(resumed, 0);
  for (int64_t q = 300; q < 500; ++q) {
    for (int64_t k = 0; k < 500; ++k) {
      ASSERT_EQ(all.Count(q, k), tail.Count(q, k)) << "q " << q << " k " << k;
    }
  }
}

TEST(AShapePlanTest, AWindowAsLongAsTheRowsIsDense) {
  const PlanShape shape = {.q_len = 300, .kv_len = 300};
  OVERTURE_ASSERT_OK_AND_ASSIGN(const TilePlan dense, DensePlan(shape));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const TilePlan a_shape,
                                AShapePlan(shape, 128, 300));
  EXPECT_EQ(a_shape.ranges, dense.ranges);
  EXPECT_EQ(a_shape.range_offsets, dense.range_offsets);
}

TEST(AShapePlanTest, RefusesSizesBelowTheirLimits) {
  const PlanShape shape = {.q_len = 64, .kv_len = 64};
  EXPECT_THAT(AShapePlan(shape, -1, 1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("num_initial is -1, must be >= 0")));
  EXPECT_THAT(AShapePlan(shape, 0, 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("num_local is 0, must be >= 1")));
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  OVERTURE_ASSERT_OK_AND_ASSIGN(const TilePlan plan,
                                AShapePlan(shape, kMax, kMax));
  EXPECT_THAT(plan.ranges, ElementsAre(KeyRange{0, 1}));
}

TEST(PlanShapeTest, EachFieldOutsideItsLimitIsNamed) {
  const auto expect = [](const PlanShape& shape, const char* field) {
    EXPECT_THAT(DensePlan(shape),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(field)));
    EXPECT_THAT(AShapePlan(shape, 1, 1),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(field)));
  };
  expect({.q_len = 1, .kv_len = 1, .tile_rows = 0}, "tile_rows is 0");
  expect({.q_len = 1, .kv_len = 1, .tile_keys = 0}, "tile_keys is 0");
  expect({.q_begin = -1, .q_len = 1, .kv_len = 1}, "q_begin is -1");
  expect({.q_len = 0, .kv_len = 1}, "q_len is 0");
  expect({.q_len = 2, .kv_len = 1}, "kv_len is 1");
  expect({.q_begin = 1, .q_len = 1, .kv_len = 1}, "kv_len is 1");
  expect({.q_len = 1, .kv_len = int64_t{1} << 31}, "kv_len is 2147483648");
  expect({.q_begin = std::numeric_limits<int64_t>::max(),
          .q_len = std::numeric_limits<int64_t>::max(),
          .kv_len = 5},
         "kv_len is 5");
}

}  // namespace
}  // namespace overture::kernels
