// What a turn's prompt is; that the answers are the server's is seen in
// tests/e2e/evaluate_test.cc.
#include "clients/evaluate/runner.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace overture::clients {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Sample MakeSample() {
  Sample sample;
  sample.context = {1, 2};
  sample.turns = {{.question = {10}, .gold = {11, 12}, .closing = {13}},
                  {.question = {20}, .gold = {21}, .closing = {22}}};
  return sample;
}

TurnPrompt Prompt(Mode mode, absl::string_view question, int turn) {
  return PromptOfTurn(MakeSample(), mode, question, turn);
}

TEST(PromptOfTurnTest, TheQuestionEndsThePrompt) {
  const TurnPrompt prompt = Prompt(Mode::kSingle, kLast, 0);
  EXPECT_THAT(prompt.prefill, ElementsAre(1, 2, 10));
  EXPECT_THAT(prompt.continuation, IsEmpty());
}

TEST(PromptOfTurnTest, AHiddenQuestionIsForTheDecoder) {
  const TurnPrompt prompt = Prompt(Mode::kSingle, kHidden, 0);
  EXPECT_THAT(prompt.prefill, ElementsAre(1, 2));
  EXPECT_THAT(prompt.continuation, ElementsAre(10));
}

TEST(PromptOfTurnTest, TurnsFollowTheGoldAnswersOfThoseBefore) {
  EXPECT_THAT(Prompt(Mode::kMultiTurn, kLast, 1).prefill,
              ElementsAre(1, 2, 10, 11, 12, 13, 20));
  EXPECT_THAT(Prompt(Mode::kMultiTurn, kHidden, 1).prefill,
              ElementsAre(1, 2, 10, 11, 12, 13));
}

TEST(PromptOfTurnTest, RequestsShareTheContextAlone) {
  EXPECT_THAT(Prompt(Mode::kMultiRequest, kLast, 1).prefill,
              ElementsAre(1, 2, 20));
}

TEST(PromptOfTurnTest, AStoredViewIsThatOfTheFirstTurn) {
  const TurnPrompt first = Prompt(Mode::kStoredView, kLast, 0);
  EXPECT_THAT(first.prefill, ElementsAre(1, 2, 10));
  EXPECT_THAT(first.continuation, IsEmpty());
  const TurnPrompt second = Prompt(Mode::kStoredView, kLast, 1);
  EXPECT_THAT(second.prefill, ElementsAre(1, 2, 10));
  EXPECT_THAT(second.continuation, ElementsAre(11, 12, 13, 20));
  const TurnPrompt hidden = Prompt(Mode::kStoredView, kHidden, 1);
  EXPECT_THAT(hidden.prefill, ElementsAre(1, 2));
  EXPECT_THAT(hidden.continuation, ElementsAre(10, 11, 12, 13, 20));
}

}  // namespace
}  // namespace overture::clients
