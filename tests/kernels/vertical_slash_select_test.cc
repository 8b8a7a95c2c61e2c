// How vertical-slash selection ranks: sizes, ties, forced ones, masses. What it
// plans is in vertical_slash_test.cc.
#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/selectors/vertical_slash.h"

namespace overture::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

std::vector<int32_t> Iota(int32_t count) {
  std::vector<int32_t> v(count);
  std::iota(v.begin(), v.end(), 0);
  return v;
}

std::vector<int32_t> Concat(std::vector<int32_t> a,
                            const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(ClampTest, RaisesToTheForcedSizesAndLowersToTheLength) {
  EXPECT_EQ(Clamp({1000, 6096}, 1 << 20), (VerticalSlashSize{1000, 6096}));
  EXPECT_EQ(Clamp({1000, 6096}, 500), (VerticalSlashSize{500, 500}));
  EXPECT_EQ(Clamp({0, 0}, 1000), (VerticalSlashSize{30, 50}));
  EXPECT_EQ(Clamp({-5, -5}, 1000), (VerticalSlashSize{30, 50}));
  EXPECT_EQ(Clamp({1, 1}, 40), (VerticalSlashSize{30, 40}));
  EXPECT_EQ(Clamp({1, 1}, 1), (VerticalSlashSize{1, 1}));
}

TEST(ClampTest, RaisesNoStaticSize) {
  EXPECT_EQ(Clamp(StaticSize(4, 8), 1000), StaticSize(4, 8));
  EXPECT_EQ(Clamp(StaticSize(0, 1), 1000), StaticSize(0, 1));
  EXPECT_EQ(Clamp(StaticSize(128, 3968), 1000).slash, 1000);
  // One more than what is forced, and the probe has a say again.
  EXPECT_EQ(Clamp({5, 8, 4, 8}, 1000), (VerticalSlashSize{30, 50, 4, 8}));
}

class SelectTest : public ::testing::Test {
 protected:
  std::vector<float> columns_ = std::vector<float>(500, 0.0f);
  std::vector<float> diagonals_ = std::vector<float>(500, 0.0f);
};

TEST_F(SelectTest, SinksAndLocalBandComeFirst) {
  columns_[400] = 9;
  diagonals_[300] = 9;
  const VerticalSlashIndex index =
      SelectVerticalSlash(columns_, diagonals_, {31, 101});
  EXPECT_THAT(index.verticals, ElementsAreArray(Concat(Iota(30), {400})));
  EXPECT_THAT(index.slashes, ElementsAreArray(Concat(Iota(100), {300})));
}

TEST_F(SelectTest, ForcedCountsAreTheSizesOwn) {
  columns_[400] = diagonals_[300] = 9;
  const VerticalSlashIndex index =
      SelectVerticalSlash(columns_, diagonals_, {41, 121, 40, 120});
  EXPECT_THAT(index.verticals, ElementsAreArray(Concat(Iota(40), {400})));
  EXPECT_THAT(index.slashes, ElementsAreArray(Concat(Iota(120), {300})));
}

TEST_F(SelectTest, AStaticHeadAsksNoScore) {
  columns_[400] = diagonals_[300] = 9;
  const VerticalSlashIndex index =
      SelectVerticalSlash(columns_, diagonals_, StaticSize(0, 8));
  EXPECT_THAT(index.verticals, ElementsAre());
  EXPECT_THAT(index.slashes, ElementsAreArray(Iota(8)));
}

TEST_F(SelectTest, LargestScoresWinAndComeOutAscending) {
  columns_[77] = 1;
  columns_[499] = 3;
  columns_[30] = 2;
  columns_[200] = 0.5;
  const VerticalSlashIndex index =
      SelectVerticalSlash(columns_, diagonals_, {33, 100});
  EXPECT_THAT(index.verticals,
              ElementsAreArray(Concat(Iota(30), {30, 77, 499})));
  EXPECT_THAT(index.slashes, ElementsAreArray(Iota(100)));
}

TEST_F(SelectTest, TiesGoToTheSmallerIndex) {
  columns_[60] = columns_[50] = columns_[70] = 1;
  columns_[40] = -0.0f;  // ties with +0: 31 and 32 come before it
  const VerticalSlashIndex index =
      SelectVerticalSlash(columns_, diagonals_, {34, 103});
  EXPECT_THAT(index.verticals,
              ElementsAreArray(Concat(Iota(31), {50, 60, 70})));
  EXPECT_THAT(index.slashes, ElementsAreArray(Iota(103)));
}

TEST_F(SelectTest, DistanceZeroSurvivesABudgetBelowTheForcedBand) {
  std::fill(diagonals_.begin() + 200, diagonals_.end(), 5.0f);
  const VerticalSlashIndex index =
      SelectVerticalSlash(columns_, diagonals_, {0, 60});
  EXPECT_THAT(index.slashes, ElementsAreArray(Iota(60)));
  EXPECT_THAT(index.verticals, ElementsAreArray(Iota(30)));
}

TEST_F(SelectTest, BudgetsBeyondTheLengthKeepEverything) {
  const VerticalSlashIndex index =
      SelectVerticalSlash(columns_, diagonals_, {1000, 6096});
  EXPECT_THAT(index.verticals, ElementsAreArray(Iota(500)));
  EXPECT_THAT(index.slashes, ElementsAreArray(Iota(500)));
}

TEST_F(SelectTest, OneTokenKeepsItself) {
  const std::vector<float> one = {1};
  const VerticalSlashIndex index = SelectVerticalSlash(one, one, {1000, 6096});
  EXPECT_THAT(index.verticals, ElementsAre(0));
  EXPECT_THAT(index.slashes, ElementsAre(0));
}

TEST_F(SelectTest, NanRanksBelowEveryNumber) {
  std::fill(columns_.begin(), columns_.end(),
            std::numeric_limits<float>::quiet_NaN());
  columns_[450] = -std::numeric_limits<float>::infinity();
  columns_[460] = -1;
  const VerticalSlashIndex index =
      SelectVerticalSlash(columns_, diagonals_, {33, 100});
  EXPECT_THAT(index.verticals, ElementsAreArray(Concat(Iota(31), {450, 460})));
}

TEST_F(SelectTest, EqualsASortOnRandomScores) {
  const uint32_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 rng(seed);
  for (int round = 0; round < 200; ++round) {
    const int32_t n = 1 + rng() % 400;
    std::vector<float> scores(n);
    // Few distinct values, so that ties straddle the cut.
    for (float& score : scores) score = static_cast<float>(rng() % 12);
    const VerticalSlashSize size = {static_cast<int32_t>(rng() % 300),
                                    static_cast<int32_t>(rng() % 300)};
    const auto by_sort = [&](int32_t count, int32_t forced) {
      std::vector<int32_t> order = Iota(n);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        if ((a < forced) != (b < forced)) return a < forced;
        return a >= forced && scores[a] > scores[b];
      });
      order.resize(count);
      std::sort(order.begin(), order.end());
      return order;
    };
    const VerticalSlashSize clamped = Clamp(size, n);
    const VerticalSlashIndex index = SelectVerticalSlash(scores, scores, size);
    ASSERT_EQ(index.verticals, by_sort(clamped.vertical, 30));
    ASSERT_EQ(index.slashes, by_sort(clamped.slash, 100));
  }
}

// A size whose forced counts and caps are the same for both kinds.
VerticalSlashSize MassSize(float mass, int32_t cap, int32_t forced) {
  return {.vertical = cap,
          .slash = cap,
          .forced_columns = forced,
          .forced_distances = forced,
          .mass = mass};
}

TEST_F(SelectTest, AMassKeepsTheFewestThatReachIt) {
  columns_[0] = 1;  // forced, and counts
  columns_[300] = 4;
  columns_[200] = 2;
  columns_[100] = 1;
  const auto verticals = [&](float mass) {
    return SelectVerticalSlash(columns_, diagonals_, MassSize(mass, 400, 2))
        .verticals;
  };
  EXPECT_THAT(verticals(0.1f), ElementsAre(0, 1));
  EXPECT_THAT(verticals(0.125f), ElementsAre(0, 1));
  EXPECT_THAT(verticals(0.126f), ElementsAre(0, 1, 300));
  EXPECT_THAT(verticals(0.625f), ElementsAre(0, 1, 300));
  EXPECT_THAT(verticals(0.7f), ElementsAre(0, 1, 200, 300));
  EXPECT_THAT(verticals(1.0f), ElementsAre(0, 1, 100, 200, 300));
  // Nothing weighs anything: what is forced is all of it.
  EXPECT_THAT(
      SelectVerticalSlash(columns_, diagonals_, MassSize(0.9f, 400, 2)).slashes,
      ElementsAre(0, 1));
}

TEST_F(SelectTest, AMassStopsAtTheCapAndTakesTheSmallerOfEquals) {
  std::fill(columns_.begin(), columns_.end(), 0.5f);
  const auto num_verticals = [&](float mass, int32_t cap) {
    const VerticalSlashIndex index =
        SelectVerticalSlash(columns_, columns_, MassSize(mass, cap, 1));
    EXPECT_THAT(index.verticals,
                ElementsAreArray(Iota(index.verticals.size())));
    EXPECT_EQ(index.slashes, index.verticals);
    return index.verticals.size();
  };
  EXPECT_EQ(num_verticals(0.5f, 500), 250);
  EXPECT_EQ(num_verticals(0.5f, 499), 250);
  EXPECT_EQ(num_verticals(0.5f, 100), 100);
  EXPECT_EQ(num_verticals(2.0f, 500), 500);
}

TEST_F(SelectTest, AMassWeighsNoNanNoNegativeAndNoInfinity) {
  columns_[10] = std::numeric_limits<float>::quiet_NaN();
  columns_[20] = -std::numeric_limits<float>::infinity();
  columns_[30] = std::numeric_limits<float>::infinity();  // as 128
  columns_[40] = 128;
  EXPECT_THAT(
      SelectVerticalSlash(columns_, columns_, MassSize(0.5f, 400, 1)).verticals,
      ElementsAre(0, 30));
  EXPECT_THAT(SelectVerticalSlash(columns_, columns_, MassSize(0.51f, 400, 1))
                  .verticals,
              ElementsAre(0, 30, 40));
}

TEST_F(SelectTest, AMassIsAPrefixOfTheRankingOnRandomScores) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 rng(seed);
  for (int round = 0; round < 100; ++round) {
    const int32_t n = 200 + rng() % 300;
    std::vector<float> scores(n);
    // Whole numbers: any order of additions is exact here, too.
    for (float& score : scores) score = static_cast<float>(rng() % 12);
    const double total = std::accumulate(scores.begin(), scores.end(), 0.0);
    const auto mass_of = [&](const std::vector<int32_t>& indices) {
      double mass = 0;
      for (const int32_t i : indices) mass += scores[i];
      return mass / total;
    };
    const float mass = static_cast<float>(1 + rng() % 99) / 100;
    VerticalSlashSize size = MassSize(mass, n, 1 + rng() % 50);
    const std::vector<int32_t> kept =
        SelectVerticalSlash(scores, scores, size).verticals;
    ASSERT_GE(mass_of(kept), mass - 1e-6);
    // The same sizes without a mass keep the same, and one fewer too little.
    size.mass = 0;
    size.vertical = size.slash = static_cast<int32_t>(kept.size());
    if (size.vertical < 50) continue;  // raised by Clamp
    ASSERT_EQ(SelectVerticalSlash(scores, scores, size).verticals, kept);
    if (size.vertical == size.forced_columns || size.vertical == 50) continue;
    --size.vertical;
    ASSERT_LT(mass_of(SelectVerticalSlash(scores, scores, size).verticals),
              mass + 1e-6);
  }
}

}  // namespace
}  // namespace overture::kernels
