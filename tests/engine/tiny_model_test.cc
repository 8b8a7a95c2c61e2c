// The tokenizer that tests/support/tiny_model.h writes beside its weights; the
// weights are the business of model_files_test.cc.
#include "tests/support/tiny_model.h"

#include <cmath>
#include <string>

#include "engine/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::testing {
namespace {

using ::overture::engine::Tokenizer;
using ::testing::ElementsAre;

TEST(TinyModelTest, BothFormsCarryTheSameByteTokenizer) {
  const TinyModel model({});
  const TempDir dir;
  OVERTURE_ASSERT_OK(model.WriteHuggingFace(dir.Join("m")));
  OVERTURE_ASSERT_OK(model.WriteGguf(dir.Join("m.gguf")));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto folder,
                                Tokenizer::Load(dir.Join("m")));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto gguf,
                                Tokenizer::Load(dir.Join("m.gguf")));
  for (const auto* tokenizer : {folder.get(), gguf.get()}) {
    EXPECT_EQ(tokenizer->vocab_size(), 320);
    EXPECT_EQ(tokenizer->TokenId("<|endoftext|>"), 256);
    EXPECT_EQ(tokenizer->TokenId("<|extra_62|>"), 319);
    // Printable ASCII comes first: '!' is 0.
    EXPECT_THAT(tokenizer->Encode("!A<|endoftext|>", {}),
                ElementsAre(0, 'A' - '!', 256));
    const std::string text = "tab\t, e\xcc\x81, \xff";
    EXPECT_EQ(*tokenizer->Decode(tokenizer->Encode(text, {}), false), text);
  }
  EXPECT_EQ(folder->digest(), gguf->digest());
}

TEST(TinyModelTest, EqualOptionsGiveEqualWeightsAndSeedsDiffer) {
  const TinyModel one({}), same({}), other({.seed = 2});
  const auto q = engine::TensorRole::kQ;
  EXPECT_EQ(one.Weight(q, 1), same.Weight(q, 1));
  EXPECT_NE(one.Weight(q, 1), other.Weight(q, 1));
  EXPECT_NE(one.Weight(q, 0), one.Weight(q, 1));
  // The first output of mt19937 with seed 1 is 1,791,095,845, on any machine.
  EXPECT_EQ(one.Weight(engine::TensorRole::kTokenEmbedding, 0)[0],
            std::sqrt(3.0f) * ((1'791'095'845u >> 8) * 0x1p-23f - 1.0f));
}

}  // namespace
}  // namespace overture::testing
