#include "proto/selector_text.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::v1 {
namespace {

using ::overture::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Selector Parsed(absl::string_view text) {
  absl::StatusOr<Selector> selector = ParseSelector(text);
  EXPECT_TRUE(selector.ok()) << selector.status();
  return selector.ok() ? *selector : Selector();
}

TEST(SelectorTextTest, EveryKindIsRead) {
  EXPECT_TRUE(Parsed("dense").has_dense());
  EXPECT_EQ(Parsed("a_shape:4,256").a_shape().num_initial(), 4);
  EXPECT_EQ(Parsed("a_shape:0,256").a_shape().num_local(), 256);
  EXPECT_EQ(Parsed("tri_shape:4,256,64").tri_shape().num_last(), 64);
  const Selector::VerticalSlash slash =
      Parsed("vertical_slash:100,200").vertical_slash();
  EXPECT_EQ(slash.vertical(), 100);
  EXPECT_EQ(slash.slash(), 200);
  EXPECT_FALSE(slash.per_head());
  EXPECT_TRUE(Parsed("vertical_slash:per_head").vertical_slash().per_head());
  EXPECT_TRUE(Parsed("vertical_slash:per_head,whole_prompt")
                  .vertical_slash()
                  .whole_prompt());
  EXPECT_EQ(Parsed("blocks:count=100").blocks().count(), 100);
  EXPECT_EQ(Parsed("random_blocks:0.25,7").random_blocks().seed(), 7);
  EXPECT_EQ(Parsed("oracle:0.25").oracle().density(), 0.25f);
}

TEST(SelectorTextTest, WhatIsLeftOutIsTheDefault) {
  EXPECT_EQ(Parsed("a_shape").a_shape().num_initial(), 128);
  EXPECT_EQ(Parsed("a_shape").a_shape().num_local(), 3968);
  EXPECT_TRUE(Parsed("vertical_slash").has_vertical_slash());
  EXPECT_EQ(Parsed("vertical_slash").vertical_slash().vertical(), 0);
  EXPECT_TRUE(Parsed("blocks").has_blocks());
  EXPECT_FALSE(Parsed("blocks").has_dense_until());
}

TEST(SelectorTextTest, TheHybridIsColumnsDistancesAndBlocksInAnyOrder) {
  const Selector selector = Parsed(
      "vertical_slash:100,200,means,skip=0.001,threshold=0.1,mass=0.95,"
      "dense_until=0");
  EXPECT_EQ(selector.vertical_slash().vertical(), 100);
  EXPECT_EQ(selector.vertical_slash().threshold(), 0.1f);
  EXPECT_EQ(selector.vertical_slash().mass(), 0.95f);
  EXPECT_TRUE(selector.vertical_slash().correct_means());
  EXPECT_EQ(selector.skip_threshold(), 0.001f);
  EXPECT_TRUE(selector.has_dense_until());
}

TEST(SelectorTextTest, WhatIsWrittenIsReadAsTheSame) {
  for (const char* text :
       {"dense", "dense:skip=0.25", "a_shape:4,256", "tri_shape:4,256",
        "tri_shape:4,256,64,dense_until=512", "vertical_slash",
        "vertical_slash:100,200", "vertical_slash:per_head,whole_prompt",
        "vertical_slash:100,200,mass=0.95,threshold=0.1,means,dense_until=256",
        "vertical_slash:count=100,whole_prompt", "blocks",
        "blocks:threshold=0.1,means,initial=4,local=64,skip=0.5",
        "random_blocks:0.25,7", "oracle:0.25", "blocks:dense_until=0",
        "oracle:0.123456776", "blocks:threshold=1e-45"}) {
    EXPECT_EQ(SelectorText(Parsed(text)), text);
  }
  EXPECT_EQ(SelectorText(Selector()), "default");
}

TEST(SelectorTextTest, WhatIsNoSelectorIsNamed) {
  for (const char* text : {"",
                           "sparse",
                           "dense:1",
                           "dense:",
                           "a_shape:1",
                           "a_shape:1,2,3",
                           "a_shape:1,2:3",
                           "a_shape:-1,2",
                           "a_shape:per_head",
                           "a_shape:,2",
                           "vertical_slash:1",
                           "vertical_slash:per_head,1",
                           "vertical_slash:per_head,mass=0.5",
                           "vertical_slash:mass=0.5,1,2",
                           "vertical_slash:mass=nan",
                           "vertical_slash:mass",
                           "blocks:1",
                           "blocks:mass=0.5",
                           "random_blocks",
                           "oracle:x",
                           "dense:skip="}) {
    EXPECT_THAT(
        ParseSelector(text).status(),
        StatusIs(kInvalid, AllOf(HasSubstr("must be dense"),
                                 HasSubstr(absl::StrCat("'", text, "'")))))
        << text;
  }
  EXPECT_THAT(ParseSelector("a_shape:x,2").status(),
              StatusIs(kInvalid, HasSubstr("at 'x'")));
  // What should have been a number, or its absence.
  EXPECT_THAT(ParseSelector("oracle:inf").status(),
              StatusIs(kInvalid, HasSubstr("at 'inf'")));
  EXPECT_THAT(ParseSelector("random_blocks").status(),
              StatusIs(kInvalid, HasSubstr("at 'random_blocks'")));
}

}  // namespace
}  // namespace overture::v1
