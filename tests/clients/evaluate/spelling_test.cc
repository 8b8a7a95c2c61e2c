#include "clients/evaluate/spelling.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "engine/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::clients {
namespace {

using ::testing::EndsWith;
using ::testing::SizeIs;

constexpr char kModel[] = "tests/data/retrieval_model/diffuse";

TEST(SpellingTest, FreeWordsAreThoseOfTheRetrievalModelInOrder) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                                engine::Tokenizer::Load(kModel));
  for (int64_t i = 0; i < kNumFreeWords; ++i) {
    EXPECT_THAT(tokenizer->Encode(FreeWord(i), {}),
                ::testing::ElementsAre(400 + i));
  }
}

TEST(SpellingTest, DigitsAndBytesAreOneTokenEachInWords) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                                engine::Tokenizer::Load(kModel));
  EXPECT_THAT(tokenizer->Encode(SpellDigits(Spelling::kWords, {0, 4, 9}), {}),
              ::testing::ElementsAre(256, 260, 265));
  const std::vector<int64_t> bytes = {0,  1,  2,  3,   4,   5,   6,   7,
                                      15, 16, 99, 100, 200, 253, 254, 255};
  EXPECT_THAT(tokenizer->Encode(SpellBytes(Spelling::kWords, bytes), {}),
              ::testing::ElementsAreArray(bytes));
}

TEST(SpellingTest, TextSpellsNumbersAndUuidsAsPeopleDo) {
  EXPECT_EQ(SpellDigits(Spelling::kText, {0, 4, 9}), "049");
  EXPECT_EQ(SpellBytes(Spelling::kText, std::vector<int64_t>(16, 0xab)),
            "abababab-abab-abab-abab-abababababab");
  EXPECT_EQ(SpellName(Spelling::kText, 0, 0), FreeWord(0) + "-" + FreeWord(0));
}

TEST(SpellingTest, ProseHasSixteenTokensASentenceInWords) {
  SampleRandom random(3);
  std::set<std::string> seen;
  for (int i = 0; i < 50; ++i) {
    const std::string sentence = ProseSentence(Spelling::kWords, random);
    EXPECT_THAT(std::vector<std::string>(absl::StrSplit(sentence, ' ')),
                SizeIs(16));
    EXPECT_THAT(sentence, EndsWith(" ."));
    EXPECT_TRUE(seen.insert(sentence).second);
  }
}

TEST(SpellingTest, FillReplacesWhatIsNamedAndNothingElse) {
  EXPECT_EQ(Fill("{k}: {v}, {v} {n} {", {{"k", "{v}"}, {"v", "7"}}),
            "{v}: 7, 7 {n} {");
}

}  // namespace
}  // namespace overture::clients
