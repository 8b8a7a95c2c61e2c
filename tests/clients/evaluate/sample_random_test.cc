#include "clients/evaluate/sample_random.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace overture::clients {
namespace {

using ::testing::UnorderedElementsAre;

// From Vigna's splitmix64.c with the state 1234567.
TEST(SampleRandomTest, YieldsThePublishedSequence) {
  SampleRandom random(1234567);
  EXPECT_EQ(random.Next(), 6457827717110365317u);
  EXPECT_EQ(random.Next(), 3203168211198807973u);
  EXPECT_EQ(random.Next(), 9817491932198370423u);
}

TEST(SampleRandomTest, NumbersStayBelowTheirBoundAndReachIt) {
  SampleRandom random(1);
  std::vector<int> counts(3, 0);
  // Each count is binomial around 1,000 with a deviation of 26.
  for (int i = 0; i < 3000; ++i) ++counts[random.Below(3)];
  for (const int count : counts) EXPECT_NEAR(count, 1000, 6 * 26);
  for (int i = 0; i < 1000; ++i) {
    const double u = random.Uniform();
    EXPECT_TRUE(u >= 0 && u < 1) << u;
  }
  EXPECT_EQ(random.Below(1), 0);
}

TEST(SampleRandomTest, DistinctAndShuffledNumbersAreAllThere) {
  SampleRandom random(2);
  EXPECT_THAT(random.Distinct(4, 4), UnorderedElementsAre(0, 1, 2, 3));
  std::vector<int> items = {1, 2, 3, 4, 5};
  random.Shuffle(items);
  EXPECT_THAT(items, UnorderedElementsAre(1, 2, 3, 4, 5));
}

}  // namespace
}  // namespace overture::clients
