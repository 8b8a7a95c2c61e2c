#include "clients/evaluate/wording.h"

#include <cstdint>
#include <vector>

#include "engine/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::clients {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int32_t kPad = 276;  // also the retrieval model's unknown token
constexpr int kNumWordings = static_cast<int>(WordingId::kNeighbours) + 1;

TEST(WordingTest, TheRetrievalModelKnowsEveryWord) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const auto tokenizer,
      engine::Tokenizer::Load("tests/data/retrieval_model/diffuse"));
  for (int i = 0; i < kNumWordings; ++i) {
    const Wording& wording =
        GetWording(static_cast<WordingId>(i), Spelling::kWords);
    for (const absl::string_view text :
         {wording.head, wording.fact, wording.link, wording.question,
          wording.answer, wording.closing}) {
      const std::string filled =
          Fill(text, {{"k", FreeWord(0)}, {"v", "<d1>"}, {"n", "<d3>"}});
      EXPECT_THAT(tokenizer->Encode(filled, {}), Not(Contains(kPad))) << text;
    }
  }
}

TEST(WordingTest, EveryTaskHasAFactAQuestionAndAnAnswer) {
  for (const Spelling spelling : {Spelling::kWords, Spelling::kText}) {
    for (int i = 0; i < kNumWordings; ++i) {
      const Wording& wording = GetWording(static_cast<WordingId>(i), spelling);
      EXPECT_FALSE(wording.head.empty());
      EXPECT_FALSE(wording.fact.empty());
      EXPECT_FALSE(wording.question.empty());
      EXPECT_THAT(wording.answer, HasSubstr("{v}"));
    }
  }
}

}  // namespace
}  // namespace overture::clients
