#include "clients/evaluate/context_builder.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::clients {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

// A token a byte: ids can be read.
absl::StatusOr<std::vector<int32_t>> Bytes(absl::string_view text) {
  return std::vector<int32_t>(text.begin(), text.end());
}
std::string Text(const absl::StatusOr<std::vector<int32_t>>& ids) {
  OVERTURE_EXPECT_OK(ids);
  return ids.ok() ? std::string(ids->begin(), ids->end()) : "";
}
std::string Filler() { return "abc."; }

TEST(ContextBuilderTest, FactsStandAtTheBorderNearestToTheirDepth) {
  // Ten tokens of hay: borders at 0, 4 and 8.
  const auto at = [](double depth) {
    return Text(BuildHaystack("<", {{"F", depth}}, Filler, 12, Bytes));
  };
  EXPECT_EQ(at(0), "<Fabc.abc.ab");
  EXPECT_EQ(at(0.24), "<Fabc.abc.ab");
  EXPECT_EQ(at(0.26), "<abc.Fabc.ab");
  EXPECT_EQ(at(1), "<abc.abc.Fab");
}

TEST(ContextBuilderTest, AFactOfDepthOneStandsAtTheEndOfWholePieces) {
  EXPECT_EQ(Text(BuildHaystack("<", {{"F", 1}}, Filler, 10, Bytes)),
            "<abc.abc.F");
}

TEST(ContextBuilderTest, FactsOfOneDepthKeepTheirOrder) {
  EXPECT_EQ(
      Text(BuildHaystack("", {{"3", 1}, {"1", 0}, {"2", 0}}, Filler, 7, Bytes)),
      "12abc.3");
}

TEST(ContextBuilderTest, NoRoomForHayIsFineAndLessIsAnError) {
  EXPECT_EQ(Text(BuildHaystack("<", {{"Fact", 0.5}}, Filler, 5, Bytes)),
            "<Fact");
  EXPECT_THAT(BuildHaystack("<", {{"Fact", 0.5}}, Filler, 4, Bytes),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("needs 5")));
}

TEST(ContextBuilderTest, ListsArePaddedInFront) {
  EXPECT_EQ(Text(BuildList("<", {"one", "two"}, Filler, 12, Bytes)),
            "<abc.aonetwo");
  EXPECT_THAT(BuildList("<", {"one", "two"}, Filler, 6, Bytes),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("needs 7")));
}

TEST(ContextBuilderTest, CountsTheItemsThatFit) {
  const auto item = [](int64_t i) { return absl::StrCat("item", i); };
  EXPECT_EQ(CountItems("<", item, 100, 11, Bytes).value_or(-1), 2);
  EXPECT_EQ(CountItems("<", item, 100, 10, Bytes).value_or(-1), 1);
  EXPECT_EQ(CountItems("<", item, 1, 100, Bytes).value_or(-1), 1);
}

}  // namespace
}  // namespace overture::clients
