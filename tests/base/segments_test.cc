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

TEST(SegmentRuleTest, LongSegmentsBeginWhereTheRuleSays) {
  constexpr SegmentRule rule{.tokens = 2, .long_from = 6, .long_tokens = 5};
  // Ends of the segments of positions 0 to 16.
  constexpr int64_t kEnds[] = {2,  2,  4,  4,  6,  6,  11, 11, 11,
                               11, 11, 16, 16, 16, 16, 16, 21};
  for (int64_t position = 0; position < 17; ++position) {
    EXPECT_EQ(rule.EndOf(position), kEnds[position]) << position;
    EXPECT_EQ(rule.IsBoundary(position),
              position == 0 || kEnds[position] != kEnds[position - 1])
        << position;
  }
  EXPECT_EQ(rule.LongestOf(6), 2);
  EXPECT_EQ(rule.LongestOf(7), 5);
}

}  // namespace
}  // namespace overture
