#include "service/convert.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/selector_text.h"
#include "tests/support/status_matchers.h"

namespace overture::service {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kBad = absl::StatusCode::kInvalidArgument;

TEST(ConvertTest, SelectorsGoBothWays) {
  const engine::SelectorSpec fallback;
  v1::Selector selector;
  selector.mutable_vertical_slash()->set_vertical(700);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const engine::SelectorSpec spec,
                                SelectorFromProto(selector, fallback, {}));
  EXPECT_EQ(spec.kind, engine::SelectorSpec::Kind::kDynamic);
  EXPECT_EQ(spec.vertical_slash.vertical, 700);
  EXPECT_EQ(spec.vertical_slash.slash, 6096) << "0 takes the default";
  v1::Selector back;
  SelectorToProto(spec, &back);
  EXPECT_EQ(back.vertical_slash().vertical(), 700);
  EXPECT_EQ(back.vertical_slash().slash(), 6096);
}

// A session's record holds the message: nothing may get lost in it.
TEST(ConvertTest, EverySelectorComesBackAsItWas) {
  for (const char* text :
       {"dense", "dense:skip=0.25", "a_shape:0,256", "tri_shape:4,256,64",
        "tri_shape:dense_until=512", "vertical_slash", "vertical_slash:30,100",
        "vertical_slash:9,8,mass=0.9,threshold=0.1,count=7,means,whole_prompt",
        "blocks", "blocks:count=50,means", "blocks:threshold=0.2,initial=30",
        "random_blocks:0.25,7", "oracle:0.1,dense_until=256"}) {
    SCOPED_TRACE(text);
    OVERTURE_ASSERT_OK_AND_ASSIGN(const v1::Selector read,
                                  v1::ParseSelector(text));
    OVERTURE_ASSERT_OK_AND_ASSIGN(const engine::SelectorSpec spec,
                                  SelectorFromProto(read, {}, {}));
    v1::Selector back;
    SelectorToProto(spec, &back);
    OVERTURE_ASSERT_OK_AND_ASSIGN(const engine::SelectorSpec again,
                                  SelectorFromProto(back, {}, {}));
    EXPECT_EQ(again, spec);
  }
}

TEST(ConvertTest, NoKindWithSettingsIsRefused) {
  v1::Selector selector;
  selector.set_dense_until(0);
  EXPECT_THAT(SelectorFromProto(selector, {}, {}),
              StatusIs(kBad, HasSubstr("without a kind")));
  // A kind of a later version: a length-delimited field 11.
  v1::Selector later;
  ASSERT_TRUE(later.ParseFromString(std::string("\x5a\x00", 2)));
  EXPECT_THAT(SelectorFromProto(later, {}, {}),
              StatusIs(kBad, HasSubstr("what this server does not know")));
}

TEST(ConvertTest, WhatIsWrongIsNamedAsInTheMessage) {
  v1::Selector selector;
  selector.mutable_blocks()->set_num_local(-1);
  EXPECT_THAT(SelectorFromProto(selector, {}, {}),
              StatusIs(kBad, HasSubstr("selector.blocks.num_local is -1, must "
                                       "be at least 0")));
  selector.mutable_oracle()->set_density(2);
  EXPECT_THAT(SelectorFromProto(selector, {}, {}),
              StatusIs(kBad, HasSubstr("selector.oracle.density is 2, must")));
}

TEST(ConvertTest, SizesPerHeadAreTheServersOwn) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const engine::HeadSizes sizes,
      engine::HeadSizes::Create({{{30, 800}, {3500, 100}}}));
  v1::Selector selector;
  selector.mutable_vertical_slash()->set_per_head(true);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const engine::SelectorSpec spec,
                                SelectorFromProto(selector, {}, sizes));
  EXPECT_EQ(spec.kind, engine::SelectorSpec::Kind::kDynamic);
  EXPECT_EQ(spec.head_sizes, sizes);
  v1::Selector back;
  SelectorToProto(spec, &back);
  EXPECT_TRUE(back.vertical_slash().per_head());

  EXPECT_THAT(SelectorFromProto(selector, {}, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("started without minference_config")));
  selector.mutable_vertical_slash()->set_slash(800);
  EXPECT_THAT(SelectorFromProto(selector, {}, sizes),
              StatusIs(kBad, HasSubstr("per_head and sizes (vertical 0, slash "
                                       "800, mass 0")));
  // Who does not ask does not get them.
  selector.mutable_vertical_slash()->set_per_head(false);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const engine::SelectorSpec one,
                                SelectorFromProto(selector, {}, sizes));
  EXPECT_TRUE(one.head_sizes.empty());
}

TEST(ConvertTest, NoSelectorIsTheFallback) {
  engine::SelectorSpec fallback;
  fallback.kind = engine::SelectorSpec::Kind::kAShape;
  fallback.num_local = 77;
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const engine::SelectorSpec spec,
      SelectorFromProto(v1::Selector(), fallback, {}));
  EXPECT_EQ(spec, fallback);
}

TEST(ConvertTest, AShapeSizesAreTakenAsTheyAre) {
  v1::Selector selector;
  selector.mutable_a_shape()->set_num_local(0);
  EXPECT_THAT(SelectorFromProto(selector, {}, {}),
              StatusIs(kBad, HasSubstr("selector.a_shape.num_local is 0")));
  selector.mutable_a_shape()->set_num_local(1);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const engine::SelectorSpec spec,
                                SelectorFromProto(selector, {}, {}));
  EXPECT_EQ(spec.num_initial, 0);
  EXPECT_EQ(spec.num_local, 1);
}

TEST(ConvertTest, ViewZerosTakeTheDefaults) {
  v1::ViewSpec view;
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto none, ViewFromProto(view));
  EXPECT_FALSE(none.has_value());
  view.mutable_snap_kv();
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto all, ViewFromProto(view));
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->window, 32);
  EXPECT_EQ(all->capacity, 1024);
  EXPECT_EQ(all->pooling, compress::Pooling::kMax);
  EXPECT_EQ(all->pooling_width, 63);
}

TEST(ConvertTest, BadViewsAreNamed) {
  v1::ViewSpec view;
  view.mutable_snap_kv()->set_pooling_width(4);
  EXPECT_THAT(ViewFromProto(view), StatusIs(kBad, HasSubstr("view.snap_kv")));
  view.mutable_snap_kv()->set_pooling_width(5);
  view.mutable_snap_kv()->set_pooling(
      static_cast<v1::ViewSpec::SnapKv::Pooling>(8));
  EXPECT_THAT(ViewFromProto(view), StatusIs(kBad, HasSubstr("pooling: 8")));
  view.mutable_snap_kv()->set_pooling(v1::ViewSpec::SnapKv::POOLING_AVERAGE);
  view.mutable_snap_kv()->set_capacity(10);
  EXPECT_THAT(ViewFromProto(view), StatusIs(kBad)) << "capacity <= window";
}

TEST(ConvertTest, TheFirstBadIdIsNamedByIndexValueAndLimit) {
  OVERTURE_EXPECT_OK(ValidateTokenIds({0, 9}, 10, "f"));
  OVERTURE_EXPECT_OK(ValidateTokenIds({}, 10, "f"));
  EXPECT_THAT(ValidateTokenIds({0, 10, -1}, 10, "f"),
              StatusIs(kBad, HasSubstr("f[1]: 10 is not in [0, 10)")));
}

TEST(ConvertTest, SessionIdsAreShortAndPlain) {
  OVERTURE_EXPECT_OK(ValidateSessionId("aZ09_.-", "id"));
  OVERTURE_EXPECT_OK(ValidateSessionId(std::string(128, 'a'), "id"));
  for (const std::string& bad :
       {std::string(), std::string(129, 'a'), std::string("a/b"),
        std::string("a\0b", 3), std::string("a\n"), std::string("\xff")}) {
    EXPECT_THAT(ValidateSessionId(bad, "id"),
                StatusIs(kBad, HasSubstr("id: ")));
  }
}

TEST(ConvertTest, PriorityAndTtlHaveBothEnds) {
  OVERTURE_EXPECT_OK(ValidatePriority(-100));
  OVERTURE_EXPECT_OK(ValidatePriority(100));
  EXPECT_FALSE(ValidatePriority(-101).ok());
  EXPECT_FALSE(ValidatePriority(101).ok());
  EXPECT_EQ(*HandleTtl(0, absl::Seconds(3)), absl::Seconds(3));
  EXPECT_EQ(*HandleTtl(1, absl::Seconds(3)), absl::Milliseconds(1));
  EXPECT_EQ(*HandleTtl(86400000, absl::Seconds(3)), absl::Hours(24));
  EXPECT_FALSE(HandleTtl(86400001, absl::Seconds(3)).ok());
  EXPECT_FALSE(HandleTtl(-1, absl::Seconds(3)).ok());
}

TEST(ConvertTest, QuotedTextIsShortAndPrintable) {
  EXPECT_EQ(Quoted("plain"), "'plain'");
  EXPECT_EQ(Quoted(absl::string_view("a\0\n", 3)), "'a\\x00\\n'");
  EXPECT_LE(Quoted(std::string(10000, 'x')).size(), 70u);
}

}  // namespace
}  // namespace overture::service
