#include "clients/evaluate/statistics.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace overture::clients {
namespace {

// 95% intervals as R's prop.test(correct = FALSE) gives them.
TEST(StatisticsTest, WilsonIntervalsAreThePublishedOnes) {
  const Interval half = WilsonInterval(50, 100);
  EXPECT_NEAR(half.low, 0.40383, 1e-5);
  EXPECT_NEAR(half.high, 0.59617, 1e-5);
  const Interval all = WilsonInterval(20, 20);
  EXPECT_NEAR(all.low, 0.83887, 1e-5);
  EXPECT_NEAR(all.high, 1, 1e-12);
  const Interval none = WilsonInterval(0, 10);
  EXPECT_NEAR(none.low, 0, 1e-12);
  EXPECT_NEAR(none.high, 0.27753, 1e-5);
}

TEST(StatisticsTest, NothingCountedSaysNothing) {
  const Interval interval = WilsonInterval(0, 0);
  EXPECT_EQ(interval.low, 0);
  EXPECT_EQ(interval.high, 1);
  EXPECT_NEAR(McNemarP(0, 0), 1, 1e-12);
}

// As R's t.test gives it.
TEST(StatisticsTest, MeansHaveStudentsInterval) {
  const Interval interval = MeanInterval({1, 2, 3, 4, 5});
  EXPECT_NEAR(interval.low, 1.036757, 1e-3);
  EXPECT_NEAR(interval.high, 4.963243, 1e-3);
  std::vector<double> many;
  for (int i = 0; i < 30; ++i) many.push_back(i);
  EXPECT_NEAR(MeanInterval(many).low, 11.212652, 2e-3);
  EXPECT_TRUE(std::isinf(MeanInterval({1}).high));
  EXPECT_EQ(Mean({}), 0);
}

// Two-sided binomial tests, by hand.
TEST(StatisticsTest, McNemarIsTheExactBinomialTest) {
  EXPECT_NEAR(McNemarP(5, 0), 2.0 / 32, 1e-12);
  EXPECT_NEAR(McNemarP(0, 6), 2.0 / 64, 1e-12);
  EXPECT_NEAR(McNemarP(8, 2), 2 * (1 + 10 + 45) / 1024.0, 1e-12);
  EXPECT_NEAR(McNemarP(3, 3), 1, 1e-12);
  EXPECT_GT(McNemarP(1000, 0), 0);
}

}  // namespace
}  // namespace overture::clients
