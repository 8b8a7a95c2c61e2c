#include "engine/head_sizes.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using kernels::VerticalSlashSize;
using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HeadSizesTest, NoneIsEmptyAndEqualsNone) {
  const HeadSizes none;
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.num_layers(), 0);
  EXPECT_EQ(none.digest(), Sha256Digest());
  EXPECT_EQ(none, HeadSizes());
}

TEST(HeadSizesTest, CopiesShareOneTable) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const HeadSizes sizes,
      HeadSizes::Create({{{30, 800}, {1000, 6096}}, {{}, {3500, 100}}}));
  EXPECT_EQ(sizes.num_layers(), 2);
  EXPECT_EQ(sizes.num_q_heads(), 2);
  EXPECT_THAT(sizes.layer(1), ElementsAre(VerticalSlashSize{1000, 6096},
                                          VerticalSlashSize{3500, 100}));
  const HeadSizes copy = sizes;
  EXPECT_EQ(copy.layer(1).data(), sizes.layer(1).data());
  EXPECT_EQ(copy, sizes);
}

TEST(HeadSizesTest, EveryNumberCountsForTheDigest) {
  const std::vector<HeadSizes::Table> tables = {
      {{{30, 800}, {30, 800}}},
      {{{31, 800}, {30, 800}}},
      {{{30, 800}, {30, 801}}},
      {{{30, 800, 29}, {30, 800}}},
      {{{30, 800, 30, 800}, {30, 800}}},
      {{{30, 800}}, {{30, 800}}},
      {{{.mass = 0.5f}, {}}},
      {{{.blocks = {.threshold = 0.5f}}, {}}},
      {{{.blocks = {.count = 1}}, {}}},
      {{{.blocks = {.correct_means = true}}, {}}},
  };
  for (size_t a = 0; a < tables.size(); ++a) {
    for (size_t b = 0; b < tables.size(); ++b) {
      OVERTURE_ASSERT_OK_AND_ASSIGN(const HeadSizes first,
                                    HeadSizes::Create(tables[a]));
      OVERTURE_ASSERT_OK_AND_ASSIGN(const HeadSizes second,
                                    HeadSizes::Create(tables[b]));
      EXPECT_EQ(first == second, a == b) << a << " " << b;
    }
  }
}

TEST(HeadSizesTest, RefusalsNameLayerAndHead) {
  const auto expect = [](HeadSizes::Table table, const char* text) {
    EXPECT_THAT(HeadSizes::Create(std::move(table)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  expect({}, "no layers or no heads");
  expect({{}, {}}, "no layers or no heads");
  expect({{{}, {}}, {{}}}, "layer 1 has 1 heads, layer 0 has 2");
  expect({{{}, {-1, 5}}}, "layer 0, head 1: vertical is -1");
  expect({{{}}, {{5, -1}}}, "layer 1, head 0: slash is -1, must be at least 0");
  expect({{{5, 5, -1}}}, "forced_columns is -1");
  expect({{{5, 5, 0, 0}}}, "forced_distances is 0, must be at least 1");
}

}  // namespace
}  // namespace overture::engine
