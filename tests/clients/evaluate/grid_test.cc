#include "clients/evaluate/grid.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::clients {
namespace {

using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<std::string> Labels(const Grid& grid) {
  std::vector<std::string> labels;
  for (const Configuration& configuration : grid.configurations) {
    labels.push_back(Label(configuration));
  }
  return labels;
}

TEST(GridTest, TheDefaultGridIsValid) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Grid grid, ParseGrid({}));
  EXPECT_THAT(grid.samples, SizeIs(5 * 2 * 3));
  EXPECT_EQ(grid.turns, 1);
}

TEST(GridTest, SamplesComeSeedBySeed) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Grid grid,
                                ParseGrid({.tasks = "kv",
                                           .lengths = "1024;2048",
                                           .depths = "0;1",
                                           .seeds = 2,
                                           .first_seed = 7}));
  std::vector<std::string> ids;
  for (const SampleId& id : grid.samples) ids.push_back(ToString(id));
  EXPECT_THAT(ids,
              ElementsAre("kv/1024/0.00/7", "kv/1024/1.00/7", "kv/2048/0.00/7",
                          "kv/2048/1.00/7", "kv/1024/0.00/8", "kv/1024/1.00/8",
                          "kv/2048/0.00/8", "kv/2048/1.00/8"));
}

TEST(GridTest, ThePairIsAlwaysThere) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Grid grid,
                                ParseGrid({.selectors = "a_shape:64,512",
                                           .views = "snapkv:32,256",
                                           .questions = "last;hidden"}));
  EXPECT_THAT(Labels(grid),
              ElementsAre("dense", "dense snapkv:32,256",
                          "a_shape:64,512 snapkv:32,256", "dense hidden",
                          "dense snapkv:32,256 hidden",
                          "a_shape:64,512 snapkv:32,256 hidden"));
}

TEST(GridTest, ANoiseFloorIsDenseOverFullKvTwice) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Grid grid,
                                ParseGrid({.selectors = "dense;a_shape:1,1",
                                           .views = "full",
                                           .noise_floor = true}));
  EXPECT_THAT(Labels(grid), ElementsAre("dense", "dense again", "a_shape:1,1"));
}

TEST(GridTest, WhatIsWrongIsNamed) {
  const auto invalid = [](const GridFlags& flags, const char* text) {
    EXPECT_THAT(ParseGrid(flags),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  invalid({.lengths = "1024;x"}, "'x' in --lengths");
  invalid({.depths = "1.5"}, "'1.5' in --depths");
  invalid({.selectors = "sparse"}, "'sparse'");
  invalid({.views = "h2o"}, "'h2o'");
  invalid({.questions = "first"}, "'first' in --questions");
  invalid({.mode = "many"}, "--mode");
  invalid({.turns = 2}, "--turns");
  invalid({.tasks = "kv;text", .questions = "last;hidden"}, "--tasks=text");
  invalid({.tasks = "text", .mode = "multi_turn"}, "--tasks=text");
  invalid({.seeds = 0}, "--seeds");
  invalid({.tasks = ""}, "--tasks is empty");
  invalid({.tasks = "kv;kv"}, "twice");
  invalid({.tasks = "riddle"}, "passkey");
  invalid({.lengths = "1024.5"}, "'1024.5' in --lengths must be an integer");
  invalid({.lengths = "1024;01024"}, "--lengths=1024;01024 holds 01024 twice");
  invalid({.depths = "0.5;.50"}, "twice");
  invalid({.depths = "0;-0"}, "twice");
  invalid({.depths = "nan"}, "'nan' in --depths");
  // Refused, not run out of memory on.
  invalid({.seeds = 2'000'000'000}, "6e+10 samples, at most 1000000");
  invalid({.first_seed = std::numeric_limits<int64_t>::max()},
          "is beyond 64 bits");
}

TEST(GridTest, NoSampleStandsThereTwice) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const Grid grid,
      ParseGrid({.tasks = "kv",
                 .lengths = "1024",
                 .depths = "-0;0.121;0.124;0.125;0.12;0.3333333333333333"}));
  std::vector<std::string> ids;
  for (const SampleId& id : grid.samples) ids.push_back(ToString(id));
  EXPECT_THAT(
      ids, ElementsAre("kv/1024/0.00/1", "kv/1024/0.121/1", "kv/1024/0.124/1",
                       "kv/1024/0.125/1", "kv/1024/0.12/1",
                       "kv/1024/0.3333333333333333/1"));
}

}  // namespace
}  // namespace overture::clients
