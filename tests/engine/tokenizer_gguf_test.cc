#include "engine/tokenizer_gguf.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/tokenizer_json.h"
#include "gtest/gtest.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::GgufWriter;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

// A file that an edit can spoil: "a", "b", "ab", <s>, <tool> and padding.
struct File {
  std::string model = "gpt2";
  std::string pre = "llama-bpe";
  std::vector<std::string> tokens = {"a", "b", "ab", "<s>", "<tool>", "[PAD5]"};
  std::vector<int32_t> types = {1, 1, 1, 3, 4, 5};
  std::vector<std::string> merges = {"a b"};
  std::map<std::string, uint32_t> numbers = {
      {"tokenizer.ggml.bos_token_id", 3}, {"tokenizer.ggml.eos_token_id", 3}};
  std::map<std::string, bool> flags;

  absl::StatusOr<std::unique_ptr<Tokenizer>> Load() const {
    GgufWriter writer;
    writer.AddString("general.architecture", "llama");
    if (!model.empty()) writer.AddString("tokenizer.ggml.model", model);
    if (!pre.empty()) writer.AddString("tokenizer.ggml.pre", pre);
    if (!tokens.empty()) writer.AddStrings("tokenizer.ggml.tokens", tokens);
    if (!types.empty()) writer.AddInt32s("tokenizer.ggml.token_type", types);
    if (!merges.empty()) writer.AddStrings("tokenizer.ggml.merges", merges);
    for (const auto& [key, value] : numbers) writer.AddUint32(key, value);
    for (const auto& [key, value] : flags) writer.AddBool(key, value);
    const std::string bytes = writer.Finish();
    OVERTURE_ASSIGN_OR_RETURN(const Gguf gguf, Gguf::Parse(bytes));
    OVERTURE_ASSIGN_OR_RETURN(const TokenizerSpec spec,
                              TokenizerSpecFromGguf(gguf));
    return BuildTokenizer(spec);
  }
};

Ids EncodeWithSpecial(const Tokenizer& tokenizer, const std::string& text) {
  Tokenizer::EncodeOptions options;
  options.add_special_tokens = true;
  return tokenizer.Encode(text, options);
}

TEST(TokenizerGgufTest, ReadsTokensTypesAndBoundaries) {
  File file;
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto tokenizer, file.Load());
  EXPECT_EQ(tokenizer->vocab_size(), 6);
  EXPECT_EQ(EncodeWithSpecial(*tokenizer, "aba<tool>"), (Ids{3, 2, 0, 4}));
  EXPECT_EQ(*tokenizer->Decode(Ids{3, 2, 4, 5}, false), "ab<tool>");
  EXPECT_EQ(*tokenizer->Decode(Ids{3, 2, 4, 5}, true), "<s>ab<tool>");
  EXPECT_EQ(tokenizer->TokenId("[PAD5]"), -1);
}

TEST(TokenizerGgufTest, FlagsDecideOnBosAndEos) {
  File file;
  file.flags = {{"tokenizer.ggml.add_bos_token", false},
                {"tokenizer.ggml.add_eos_token", true}};
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto suffix, file.Load());
  EXPECT_EQ(EncodeWithSpecial(*suffix, "a"), (Ids{0, 3}));
  // Without a flag only Llama-3 adds a BOS.
  file.flags.clear();
  file.pre = "gpt-2";
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto none, file.Load());
  EXPECT_EQ(EncodeWithSpecial(*none, "a"), (Ids{0}));
}

TEST(TokenizerGgufTest, EqualsTheSameTokenizerFromJson) {
  File file;
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto gguf, file.Load());
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const auto json,
      TokenizerFromJson(
          R"({"added_tokens": [{"id": 3, "content": "<s>", "special": true},
                               {"id": 4, "content": "<tool>"}],
              "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "behavior": "Isolated", "pattern": {"Regex":
                 "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
                {"type": "ByteLevel", "add_prefix_space": false,
                 "use_regex": false}]},
              "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>"}},
                           {"Sequence": {"id": "A"}}],
                "special_tokens": {"<s>": {"ids": [3]}}},
              "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2},
                        "merges": ["a b"], "ignore_merges": true}})",
          "test.json"));
  EXPECT_EQ(gguf->digest(), json->digest());
}

TEST(TokenizerGgufTest, OtherKindsAreNamedWithTheKnownOnes) {
  File spm;
  spm.model = "llama";
  EXPECT_THAT(
      spm.Load(),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr("\"llama\" is not supported; supported: gpt2")));
  File falcon;
  falcon.pre = "falcon";
  EXPECT_THAT(falcon.Load(),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("\"falcon\" is not supported; supported: "
                                 "gpt-2, llama-bpe, qwen2, smollm")));
}

TEST(TokenizerGgufTest, MalformedKeysAreRefusedByName) {
  using absl::StatusCode;
  const auto expect_refused = [](const File& file, const char* message) {
    EXPECT_THAT(file.Load(),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  File file;
  file.model.clear();
  expect_refused(file, "tokenizer.ggml.model");
  file = File();
  file.pre.clear();
  expect_refused(file, "tokenizer.ggml.pre");
  file = File();
  file.tokens.clear();
  expect_refused(file, "tokenizer.ggml.tokens");
  file = File();
  file.merges.clear();
  expect_refused(file, "tokenizer.ggml.merges");
  file = File();
  file.types.pop_back();
  expect_refused(file, "tokenizer.ggml.token_type has 5 elements");
  file = File();
  file.types[1] = 9;
  expect_refused(file, "tokenizer.ggml.token_type[1] = 9");
  file = File();
  file.merges.push_back("ab");
  expect_refused(file, "tokenizer.ggml.merges[1] has no space");
  file = File();
  file.merges.push_back("b b");
  expect_refused(file, "merges[1]: result \"bb\"");
  file = File();
  file.tokens[1] = "a";
  expect_refused(file, "tokens 0 and 1 are both \"a\"");
  file = File();
  file.numbers["tokenizer.ggml.bos_token_id"] = 6;
  expect_refused(file, "prefix token 6");
  file = File();
  file.numbers["tokenizer.ggml.bos_token_id"] = 0x80000000u;
  expect_refused(file, "tokenizer.ggml.bos_token_id = 2147483648");
  file = File();
  file.numbers.erase("tokenizer.ggml.bos_token_id");
  expect_refused(file, "tokenizer.ggml.bos_token_id");
}

}  // namespace
}  // namespace overture::engine
