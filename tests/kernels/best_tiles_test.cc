#include "kernels/selectors/best_tiles.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/plan_cover.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using testing::PlanCover;

TilePlan RandomPlan(const PlanShape& shape, float density,
                    const DenseRows& dense = {}) {
  absl::StatusOr<TilePlan> plan = RandomTilesPlan(
      shape, /*num_heads=*/2, density, dense, /*seed=*/7, /*layer=*/3);
  OVERTURE_EXPECT_OK(plan.status());
  return *std::move(plan);
}

TEST(BestTilesTest, KeepsTheRowsOwnTilesAndTheShareThatWasAsked) {
  for (const PlanShape& shape :
       {PlanShape{.q_len = 1, .kv_len = 1, .tile_rows = 128},
        {.q_len = 1000, .kv_len = 1000, .tile_rows = 128},
        {.q_begin = 333, .q_len = 500, .kv_len = 900, .tile_rows = 64},
        {.q_begin = 512, .q_len = 1, .kv_len = 513, .tile_rows = 128}}) {
    const TilePlan plan = RandomPlan(shape, 0.3f);
    OVERTURE_ASSERT_OK(Validate(plan));
    for (int64_t cell = 0; cell < plan.num_cells(); ++cell) {
      int64_t tiles = 0;
      for (int64_t i = plan.range_offsets[cell];
           i < plan.range_offsets[cell + 1]; ++i) {
        tiles += plan.ranges[i].num_tiles;
      }
      const int64_t begin =
          plan.first_tile_begin() +
          cell % plan.num_q_tiles() * static_cast<int64_t>(shape.tile_rows);
      const int64_t end = std::min<int64_t>(begin + shape.tile_rows,
                                            shape.q_begin + shape.q_len);
      const int64_t all = (end + 63) / 64;
      EXPECT_EQ(tiles,
                std::max<int64_t>(all - begin / 64,
                                  std::ceil(0.3f * static_cast<float>(all))));
    }
  }
}

TEST(BestTilesTest, TheBestComeFirstTiesGoToTheSmallerAndNansLast) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const TilePlan plan,
      BestTilesPlan({.q_begin = 512, .q_len = 64, .kv_len = 576}, 1, 5.0f / 9,
                    {}, [&](int32_t, int64_t, absl::Span<float> scores) {
                      const float values[] = {1, kNan, 3, 2, 9, 2, 2, 0, 0};
                      std::copy(std::begin(values), std::end(values),
                                scores.begin());
                    }));
  // Tile 8 is the rows' own; 4, 2, and of the three twos the first two.
  EXPECT_THAT(plan.ranges, ElementsAre(KeyRange{128, 4}, KeyRange{512, 1}));
}

TEST(BestTilesTest, DenseRowsKeepAll) {
  const PlanShape shape{.q_len = 640, .kv_len = 640, .tile_rows = 128};
  const TilePlan plan = RandomPlan(shape, 0.01f, {.until = 256, .from = 600});
  const PlanCover cover(plan, 1);
  for (const int64_t q : {0, 255, 512, 639}) {
    for (int64_t k = 0; k <= q; ++k) ASSERT_EQ(cover.Count(q, k), 1) << q;
  }
  EXPECT_EQ(cover.Count(300, 0), 0);
}

TEST(BestTilesTest, ADrawDependsOnItsNumbersAlone) {
  const PlanShape shape{.q_len = 1000, .kv_len = 1000, .tile_rows = 128};
  PlanShape resumed = shape;
  resumed.q_begin = 700;
  resumed.q_len = 300;
  const TilePlan whole = RandomPlan(shape, 0.3f);
  const PlanCover all(whole, 0), other(whole, 1);
  const PlanCover tail(RandomPlan(resumed, 0.3f), 0);
  bool heads_differ = false;
  for (int64_t q = 700; q < 1000; ++q) {
    for (int64_t k = 0; k < 1000; ++k) {
      ASSERT_EQ(all.Count(q, k), tail.Count(q, k)) << q << " " << k;
      heads_differ |= all.Count(q, k) != other.Count(q, k);
    }
  }
  EXPECT_TRUE(heads_differ);
}

TEST(BestTilesTest, MassesAreSumsOverTheTilesKeys) {
  const PlanShape shape{
      .q_begin = 120, .q_len = 30, .kv_len = 150, .tile_rows = 128};
  TileMasses masses(shape, 2);
  ASSERT_EQ(masses.num_q_tiles(), 2);
  EXPECT_EQ(masses.RowsOf(0).begin, 120);
  EXPECT_EQ(masses.RowsOf(0).end, 128);
  EXPECT_EQ(masses.RowsOf(1).end, 150);
  std::vector<float> sums(2 * 150);
  sums[150 + 64] = 1;  // list 1
  sums[150 + 127] = 2;
  sums[150 + 149] = 4;
  masses.Add(1, sums);
  std::vector<float> scores(3);
  masses.Scores(1, 1, absl::MakeSpan(scores));
  EXPECT_THAT(scores, ElementsAre(0, 3, 4));
  masses.Scores(0, 1, absl::MakeSpan(scores));
  EXPECT_THAT(scores, ElementsAre(0, 0, 0));
}

TEST(BestTilesTest, RefusalsNameTheField) {
  const auto none = [](int32_t, int64_t, absl::Span<float>) {};
  for (const float density : {0.0f, 1.5f, std::nanf("")}) {
    EXPECT_THAT(BestTilesPlan({.q_len = 1, .kv_len = 1}, 1, density, {}, none),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace overture::kernels
