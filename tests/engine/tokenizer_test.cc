// Tokenizer::Load, and whole tokenizers against the goldens that
// tests/goldens/make_tokenizer_goldens.py took from Hugging Face tokenizers.
#include "engine/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/stream_decoder.h"
#include "engine/tokenizer_json.h"
#include "engine/unicode.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/default_model.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace overture::engine {
namespace {

using ::nlohmann::json;
using ::overture::testing::StatusIs;
using ::overture::testing::TempDir;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

json ReadGolden(const std::string& name) {
  std::ifstream file("tests/goldens/" + name);
  EXPECT_TRUE(file) << name;
  return json::parse(file);
}

const json& Goldens() {
  static const json& goldens = *new json(ReadGolden("tokenizer_goldens.json"));
  return goldens;
}

std::string Streamed(const Tokenizer& tokenizer, const Ids& ids) {
  StreamDecoder decoder(tokenizer, /*keep_special=*/true);
  std::string text;
  for (const int32_t id : ids) text += *decoder.Feed(id);
  return text + decoder.Flush();
}

// `want_decoded` holds, by index, the texts that do not come back as they were.
void ExpectEqualsGolden(const Tokenizer& tokenizer, const json& corpus,
                        const json& want_ids, const json& want_decoded) {
  ASSERT_EQ(corpus.size(), want_ids.size());
  for (size_t i = 0; i < corpus.size(); ++i) {
    const auto& text = corpus[i].get_ref<const std::string&>();
    const Ids ids = tokenizer.Encode(text, {});
    EXPECT_EQ(ids, want_ids[i].get<Ids>()) << "text " << i << ": " << text;
    const std::string back = want_decoded.value(std::to_string(i), text);
    OVERTURE_ASSERT_OK_AND_ASSIGN(const std::string decoded,
                                  tokenizer.Decode(ids, true));
    EXPECT_EQ(ReplaceIllFormed(decoded), back) << "text " << i;
    EXPECT_EQ(Streamed(tokenizer, ids), back) << "text " << i;
  }
}

class TokenizerGoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(json file) {
    const json vocab = ReadGolden("tokenizer_vocab.json");
    file["model"].update(vocab);
    return TokenizerFromJson(file.dump(), GetParam());
  }
  static const json& Rule() { return Goldens()["rules"][GetParam()]; }
};

TEST_P(TokenizerGoldenTest, IdsAndTextsEqualHuggingFace) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                                Load(Rule()["tokenizer"]));
  ExpectEqualsGolden(*tokenizer, Goldens()["corpus"], Rule()["ids"],
                     Rule()["decoded"]);
}

TEST_P(TokenizerGoldenTest, SpecialTokensAreAddedAsByHuggingFace) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                                Load(Rule()["tokenizer"]));
  Tokenizer::EncodeOptions options;
  options.add_special_tokens = true;
  for (const auto& [index, ids] : Rule()["with_special_ids"].items()) {
    const json& text = Goldens()["corpus"][std::stoul(index)];
    EXPECT_EQ(tokenizer->Encode(text.get<std::string>(), options),
              ids.get<Ids>());
  }
}

TEST_P(TokenizerGoldenTest, WithoutParsingAddedTokensAreText) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                                Load(Rule()["tokenizer"]));
  ASSERT_FALSE(Rule()["plain_ids"].empty());
  Tokenizer::EncodeOptions options;
  options.parse_special = false;
  for (const auto& [index, ids] : Rule()["plain_ids"].items()) {
    const json& text = Goldens()["corpus"][std::stoul(index)];
    EXPECT_EQ(tokenizer->Encode(text.get<std::string>(), options),
              ids.get<Ids>())
        << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, TokenizerGoldenTest,
                         ::testing::Values("gpt2", "smollm", "llama-bpe",
                                           "qwen2", "flags"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(TokenizerTest, TheDefaultModelsIdsEqualHuggingFace) {
  const std::string path = overture::testing::DefaultModelPath();
  if (path.empty()) GTEST_SKIP() << overture::testing::kNoDefaultModel;
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto tokenizer, Tokenizer::Load(path));
  EXPECT_EQ(tokenizer->vocab_size(), 49152);
  EXPECT_EQ(tokenizer->TokenId("<|im_end|>"), 2);
  const json golden = ReadGolden("tokenizer_smollm2.json");
  ExpectEqualsGolden(*tokenizer, Goldens()["corpus"], golden["ids"],
                     golden["decoded"]);
}

TEST(TokenizerTest, BothFormatsOfAModelLoadAndAgree) {
  const TempDir dir;
  const overture::testing::TinyModel model{{}};
  OVERTURE_ASSERT_OK(model.WriteHuggingFace(dir.Join("folder")));
  OVERTURE_ASSERT_OK(model.WriteGguf(dir.Join("tiny.gguf")));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto json,
                                Tokenizer::Load(dir.Join("folder")));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto gguf,
                                Tokenizer::Load(dir.Join("tiny.gguf")));
  EXPECT_EQ(json->digest(), gguf->digest());
  const std::string text = "h\u00e9<|endoftext|>\n\xFF";
  EXPECT_EQ(json->Encode(text, {}), gguf->Encode(text, {}));
  EXPECT_EQ(*json->Decode(json->Encode(text, {}), true), text);
}

TEST(TokenizerTest, ErrorsNameTheFile) {
  const TempDir dir;
  EXPECT_THAT(Tokenizer::Load(dir.Join("none")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  std::filesystem::create_directory(dir.path() / "empty");
  EXPECT_THAT(
      Tokenizer::Load(dir.Join("empty")),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("tokenizer.json")));
  std::ofstream(dir.path() / "bad.gguf") << "not a model";
  EXPECT_THAT(
      Tokenizer::Load(dir.Join("bad.gguf")),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bad.gguf")));
  std::ofstream(dir.path() / "empty" / "tokenizer.json") << "{}";
  EXPECT_THAT(Tokenizer::Load(dir.Join("empty")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tokenizer.json: 'model' is missing")));
}

}  // namespace
}  // namespace overture::engine
