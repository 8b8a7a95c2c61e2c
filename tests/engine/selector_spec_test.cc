#include "engine/selector_spec.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Kind = SelectorSpec::Kind;

TEST(SelectorSpecTest, TextsAreWhatCacheRootsHold) {
  // A change here makes every stored prefix unreachable.
  EXPECT_EQ(PolicyText({}), "dense");
  EXPECT_EQ(PolicyText({.kind = Kind::kAShape}),
            "a_shape/1 initial=128 local=3968");
  EXPECT_EQ(PolicyText({.kind = Kind::kDynamic}),
            "vertical_slash/5 vertical=1000 slash=6096 forced=30,100 "
            "segment=16384 pure");
  EXPECT_EQ(PolicyText({.kind = Kind::kTriShape, .dense_until = 4096}),
            "tri_shape/1 initial=128 local=3968 last=128 segment=16384 pure "
            "dense_until=4096");
  EXPECT_EQ(PolicyText({.kind = Kind::kDynamic,
                        .vertical_slash = {.mass = 0.95f,
                                           .blocks = {.threshold = 0.1f,
                                                      .correct_means = true}},
                        .whole_prompt = true,
                        .skip_threshold = 0.001f}),
            "vertical_slash/5 vertical=1000 slash=6096 forced=30,100 "
            "mass=0.949999988 threshold=0.100000001 means "
            "whole_prompt impure skip=0.00100000005");
  EXPECT_EQ(PolicyText({.kind = Kind::kRandomBlocks, .block_density = 0.25f}),
            "random_blocks/1 seed=1 density=0.25");
  EXPECT_EQ(PolicyText({.kind = Kind::kOracle, .block_density = 0.25f}),
            "oracle/1 density=0.25 segment=16384 pure");
}

TEST(SelectorSpecTest, TextsTellParametersApart) {
  SelectorSpec spec{.kind = Kind::kDynamic};
  const std::string plain = PolicyText(spec);
  spec.segment_tokens = 512;
  EXPECT_NE(PolicyText(spec), plain);
  spec = {.kind = Kind::kDynamic};
  spec.vertical_slash.slash = 100;
  EXPECT_NE(PolicyText(spec), plain);
}

TEST(SelectorSpecTest, AMillionTokensAreTwelveSegments) {
  const SegmentRule rule = SegmentsOf({.kind = Kind::kDynamic});
  EXPECT_EQ(rule, (SegmentRule{16384, 262144}));
  int segments = 0;
  for (int64_t at = 0; at < 1 << 20; at = rule.EndOf(at)) ++segments;
  EXPECT_EQ(segments, 12);
}

TEST(SelectorSpecTest, AWholePromptIsOneSegmentUpToALimit) {
  const SelectorSpec spec{.kind = Kind::kDynamic, .whole_prompt = true};
  EXPECT_EQ(SegmentsOf(spec).EndOf(0), kMaxSegmentTokens);
  OVERTURE_EXPECT_OK(CheckLength(spec, kMaxSegmentTokens));
  EXPECT_THAT(CheckLength(spec, kMaxSegmentTokens + 1),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("262144")));
  OVERTURE_EXPECT_OK(CheckLength({.kind = Kind::kDynamic}, 1 << 20));
}

HeadSizes TwoByTwo(const kernels::VerticalSlashSize& last) {
  auto sizes = HeadSizes::Create({{{}, {30, 800}}, {{}, last}});
  OVERTURE_CHECK(sizes.ok());
  return *sizes;
}

TEST(SelectorSpecTest, AnotherTableOfSizesIsAnotherText) {
  SelectorSpec spec{.kind = Kind::kDynamic, .head_sizes = TwoByTwo({100, 800})};
  const std::string text = PolicyText(spec);
  EXPECT_EQ(text, absl::StrCat(
                      "vertical_slash/5 heads=", spec.head_sizes.digest().Hex(),
                      " segment=16384 pure"));
  SelectorSpec other = spec;
  EXPECT_EQ(other, spec);
  other.head_sizes = TwoByTwo(kernels::StaticSize(100, 800));
  EXPECT_NE(PolicyText(other), text);
  EXPECT_NE(other, spec);
  other = spec;
  other.segment_tokens = 512;
  EXPECT_NE(PolicyText(other), text);
}

TEST(SelectorSpecTest, OneSizeIsEveryHeadsAndATableIsItsOwn) {
  SelectorSpec spec{.kind = Kind::kDynamic, .vertical_slash = {40, 200}};
  EXPECT_THAT(SizesOfLayer(spec, 7, 3),
              Each(kernels::VerticalSlashSize{40, 200}));
  EXPECT_THAT(SizesOfLayer(spec, 7, 3), SizeIs(3));
  spec.head_sizes = TwoByTwo({100, 800});
  EXPECT_THAT(SizesOfLayer(spec, 1, 2),
              ElementsAre(kernels::VerticalSlashSize{},
                          kernels::VerticalSlashSize{100, 800}));
}

TEST(SelectorSpecTest, WhatIsChosenFromQueriesOrEndsLooksAhead) {
  EXPECT_TRUE(IsTokenPure({}));
  EXPECT_TRUE(IsTokenPure({.kind = Kind::kAShape}));
  EXPECT_TRUE(IsTokenPure({.kind = Kind::kRandomBlocks}));
  for (const Kind kind : {Kind::kDynamic, Kind::kTriShape, Kind::kOracle}) {
    EXPECT_FALSE(IsTokenPure({.kind = kind}));
  }
}

TEST(SelectorSpecTest, RefusalsNameFieldValueAndLimit) {
  const auto expect = [](const SelectorSpec& spec, const char* text) {
    EXPECT_THAT(Validate(spec),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  expect({.kind = Kind::kAShape, .num_initial = -1},
         "selector.a_shape.num_initial is -1, must be in [0");
  expect({.kind = Kind::kAShape, .num_local = 0},
         "selector.a_shape.num_local is 0, must be in [1");
  expect({.kind = Kind::kDynamic, .vertical_slash = {.vertical = 0}},
         "selector.vertical_slash.vertical is 0");
  expect({.kind = Kind::kDynamic, .vertical_slash = {.slash = -5}},
         "selector.vertical_slash: slash is -5");
  expect({.kind = Kind::kDynamic, .segment_tokens = 300},
         "selector.segment_tokens is 300, must be a multiple of 256");
  expect({.kind = Kind::kDynamic, .segment_tokens = 0},
         "selector.segment_tokens is 0");
  expect({.kind = Kind::kDynamic, .segment_tokens = 1 << 20},
         "must be in [256, 262144]");
  expect({.kind = Kind::kDynamic, .vertical_slash = {.forced_distances = 0}},
         "selector.vertical_slash: forced_distances is 0");
  expect({.kind = Kind::kTriShape, .num_last = 0},
         "selector.tri_shape.num_last is 0");
  expect({.kind = Kind::kOracle, .block_density = 0},
         "selector.oracle.density is 0, must be within (0, 1]");
  expect({.kind = Kind::kRandomBlocks, .block_density = NAN},
         "selector.random_blocks.density is nan");
  expect({.kind = Kind::kAShape, .dense_until = 100},
         "selector.dense_until is 100, must be a multiple of 256");
  expect({.skip_threshold = 1},
         "selector.skip_threshold is 1, must be within [0, 1)");
  expect({.kind = static_cast<Kind>(7)}, "selector.kind is 7");
}

TEST(SelectorSpecTest, ATableIsForOneShapeOfModel) {
  const SelectorSpec spec{.kind = Kind::kDynamic,
                          .head_sizes = TwoByTwo({100, 800})};
  ModelConfig config;
  config.num_layers = config.num_q_heads = 2;
  OVERTURE_EXPECT_OK(Validate(spec, config));
  config.num_q_heads = 4;
  EXPECT_THAT(Validate(spec, config),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("for 2 layers of 2 heads, the model has 2 of "
                                 "4")));
  OVERTURE_EXPECT_OK(Validate(SelectorSpec(), config));
}

TEST(SelectorSpecTest, FieldsOfOtherKindsAreIgnored) {
  OVERTURE_EXPECT_OK(Validate({.num_local = -1, .segment_tokens = 3}));
}

}  // namespace
}  // namespace overture::engine
