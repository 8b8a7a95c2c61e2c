#include "engine/added_tokens.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

// The parts, tokens as "#id".
std::vector<std::string> Split(const AddedTokens& added,
                               absl::string_view text) {
  std::vector<std::string> parts;
  added.Split(
      text, [&](absl::string_view part) { parts.emplace_back(part); },
      [&](int32_t id) { parts.push_back(absl::StrCat("#", id)); });
  return parts;
}

AddedTokens Make(const std::vector<AddedToken>& tokens) {
  auto added = AddedTokens::Create(tokens);
  EXPECT_THAT(added, overture::testing::IsOk());
  return *std::move(added);
}

using Parts = std::vector<std::string>;

TEST(AddedTokensTest, TheLongestAtTheLeftmostPlaceWins) {
  const AddedTokens added = Make({{1, "<a>"}, {2, "<a><b"}, {3, "<b>"}});
  EXPECT_EQ(Split(added, "x<a>y"), (Parts{"x", "#1", "y"}));
  EXPECT_EQ(Split(added, "<a><b>"), (Parts{"#2", ">"}));
  EXPECT_EQ(Split(added, "<<a><a>"), (Parts{"<", "#1", "#1"}));
  EXPECT_EQ(Split(added, "<a"), (Parts{"<a"}));
  EXPECT_EQ(Split(added, ""), Parts{});
  EXPECT_EQ(Split(AddedTokens(), "<a>"), Parts{"<a>"});
  EXPECT_EQ(added.Find("<b>"), 3);
  EXPECT_EQ(added.Find("<b"), -1);
}

TEST(AddedTokensTest, StripsTheWhiteSpaceItIsToldTo) {
  const AddedTokens added = Make({{.id = 1, .content = "<l>", .lstrip = true},
                                  {.id = 2, .content = "<r>", .rstrip = true}});
  EXPECT_EQ(Split(added, "a \t<l> b"), (Parts{"a", "#1", " b"}));
  EXPECT_EQ(Split(added, "a <r>\u3000\n b"), (Parts{"a ", "#2", "b"}));
  EXPECT_EQ(Split(added, "<r>  <l>"), (Parts{"#2", "#1"}));
  EXPECT_EQ(Split(added, "<l>  <l>"), (Parts{"#1", "#1"}));
  EXPECT_EQ(Split(added, "  <l>"), (Parts{"#1"}));
}

TEST(AddedTokensTest, SingleWordsStandAlone) {
  const AddedTokens added =
      Make({{.id = 1, .content = "hi", .single_word = true}});
  EXPECT_EQ(Split(added, "hi"), (Parts{"#1"}));
  EXPECT_EQ(Split(added, "(hi) chi hid hi_ \u00e9hi hi\u0301 hi"),
            (Parts{"(", "#1", ") chi hid hi_ \u00e9hi hi\u0301 ", "#1"}));
}

TEST(AddedTokensTest, IllFormedTextIsNoObstacle) {
  const AddedTokens added = Make({{.id = 1,
                                   .content = "<s>",
                                   .lstrip = true,
                                   .rstrip = true,
                                   .single_word = true}});
  EXPECT_EQ(Split(added, "\xFF<s>\xE4\xBD"), (Parts{"\xFF", "#1", "\xE4\xBD"}));
}

TEST(AddedTokensTest, ALongAlmostMatchIsLinear) {
  // Every byte starts a match that fails after at most nine.
  const AddedTokens added = Make({{1, "<|im_start|>"}, {2, "<<<<<<<<>"}});
  const std::string text(1 << 22, '<');
  EXPECT_EQ(Split(added, text), (Parts{text}));
}

TEST(AddedTokensTest, MalformedTokensAreRefused) {
  using absl::StatusCode;
  EXPECT_THAT(
      AddedTokens::Create({{7, ""}}),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("added token 7")));
  EXPECT_THAT(
      AddedTokens::Create({{7, std::string(4097, 'x')}}),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("limits are 1 and")));
  EXPECT_THAT(AddedTokens::Create({{7, "x"}, {8, "x"}}),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("added tokens 7 and 8")));
}

}  // namespace
}  // namespace overture::engine
