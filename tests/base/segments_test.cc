#include "base/segments.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace overture {
namespace {

TEST(SegmentRuleTest, UniformSegmentsEndAtMultiples) {
  constexpr SegmentRule rule = SegmentRule::Uniform(256);
  EXPECT_EQ(rule.EndOf(0), 256);
  EXPECT_EQ(rule.EndOf(255), 256);
  EXPECT_EQ(rule.EndOf(256), 512);
  EXPECT_TRUE(rule.IsBoundary(0));
  EXPECT_TRUE(rule.IsBoundary(512));
  EXPECT_FALSE(rule.IsBoundary(511));
  EXPECT_EQ(rule.LongestOf(1), 256);
  EXPECT_EQ(rule.LongestOf(1 << 20), 256);
}

TEST(SegmentRuleTest, SegmentsGrowWithWhatLiesBeforeThem) {
  constexpr SegmentRule rule{.tokens = 2, .max_tokens = 8};
  constexpr int64_t kBegins[] = {0,  2,  4,  6,  8,  12, 16,
                                 24, 32, 40, 48, 56, 64, 72};
  int64_t end = 0;
  for (const int64_t begin : kBegins) {
    EXPECT_EQ(begin, end);
    EXPECT_TRUE(rule.IsBoundary(begin));
    end = rule.EndOf(begin);
    EXPECT_EQ(begin % (end - begin), 0);
    for (int64_t position = begin + 1; position < end; ++position) {
      EXPECT_EQ(rule.EndOf(position), end) << position;
      EXPECT_FALSE(rule.IsBoundary(position)) << position;
    }
  }
  EXPECT_EQ(rule.LongestOf(0), 2);
  EXPECT_EQ(rule.LongestOf(8), 2);
  EXPECT_EQ(rule.LongestOf(9), 4);
  EXPECT_EQ(rule.LongestOf(1 << 20), 8);
}

TEST(SegmentRuleTest, AMostThatIsNoPowerOfTwoIsRoundedDown) {
  constexpr SegmentRule rule{.tokens = 10, .max_tokens = 39};
  EXPECT_EQ(rule.LongestOf(1000), 20);
}

}  // namespace
}  // namespace overture
