#include "clients/evaluate/score.h"

#include "gtest/gtest.h"

namespace overture::clients {
namespace {

const Turn kTurn = {.parts = {"<d4> <d2>", "0a ff"}, .gold = {260, 258, 272}};

TEST(ScoreTest, InWordsEveryTokenCounts) {
  const Score right = ScoreAnswer(Spelling::kWords, kTurn, {260, 258, 272}, "");
  EXPECT_TRUE(right.right);
  EXPECT_TRUE(right.tail);
  for (const std::vector<int32_t>& ids :
       {std::vector<int32_t>{260, 258}, {260, 258, 272, 1}, {260, 259, 272}}) {
    const Score wrong = ScoreAnswer(Spelling::kWords, kTurn, ids, "");
    EXPECT_FALSE(wrong.right);
    EXPECT_FALSE(wrong.tail);
  }
}

TEST(ScoreTest, TheTailLeavesOutTheFirstTokenOnly) {
  const Score score = ScoreAnswer(Spelling::kWords, kTurn, {1, 258, 272}, "");
  EXPECT_FALSE(score.right);
  EXPECT_TRUE(score.tail);
  EXPECT_FALSE(ScoreAnswer(Spelling::kWords, kTurn, {}, "").tail);
}

TEST(ScoreTest, PartsInAnyOrderMakeAnAnswerOfTheSameLengthAndEnd) {
  Turn turn = {.parts = {"bada", "gola"}, .gold = {400, 268, 401, 272}};
  turn.any_order = true;
  const auto right = [&turn](const std::vector<int32_t>& ids,
                             absl::string_view text) {
    return ScoreAnswer(Spelling::kWords, turn, ids, text).right;
  };
  EXPECT_TRUE(right({401, 268, 400, 272}, "gola , bada ."));
  EXPECT_FALSE(right({401, 268, 401, 272}, "gola , gola ."));
  EXPECT_FALSE(right({401, 268, 400, 268}, "gola , bada ,"));
  EXPECT_FALSE(right({401, 400, 272}, "gola bada ."));
  EXPECT_FALSE(right({}, ""));
}

TEST(ScoreTest, TheShareCountsPartsThatTheTextContains) {
  const auto share = [](absl::string_view text) {
    return ScoreAnswer(Spelling::kText, kTurn, {}, text).share;
  };
  EXPECT_EQ(share("it is <d4> <d2>, and 0A FF."), 1);
  EXPECT_EQ(share("<d4> <d2>"), 0.5);
  EXPECT_EQ(share("<d4> <d4> <d2>"), 0.5);
  EXPECT_EQ(share(""), 0);
  EXPECT_TRUE(ScoreAnswer(Spelling::kText, kTurn, {}, "0a ff <d4> <d2>").right);
}

TEST(ScoreTest, PartsAreWholeWordsWithoutPunctuation) {
  EXPECT_TRUE(ContainsWords("The key is \"12345\".", "12345"));
  EXPECT_FALSE(ContainsWords("The key is 123456.", "12345"));
  EXPECT_TRUE(ContainsWords("Fodi-Besa", "fodi-besa"));
}

}  // namespace
}  // namespace overture::clients
