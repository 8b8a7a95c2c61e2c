#include "engine/tokenizer_json.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::nlohmann::json;
using ::overture::testing::ByteTokenizerJson;
using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

// The byte tokenizer's file with `patch` laid over it (RFC 7386: null erases).
absl::StatusOr<std::unique_ptr<Tokenizer>> Patched(const std::string& patch) {
  json root = json::parse(ByteTokenizerJson());
  root.merge_patch(json::parse(patch));
  return TokenizerFromJson(root.dump(), "test.json");
}

Sha256Digest DigestOf(const std::string& patch) {
  const auto tokenizer = Patched(patch);
  EXPECT_THAT(tokenizer, IsOk());
  return (*tokenizer)->digest();
}

TEST(TokenizerJsonTest, ReadsAByteLevelTokenizer) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto tokenizer, Patched("{}"));
  EXPECT_EQ(tokenizer->vocab_size(), 260);
  EXPECT_EQ(tokenizer->Encode("the theme<|end|>", {}),
            (Ids{257, 258, 'm', 'e', 259}));
}

TEST(TokenizerJsonTest, EquivalentFilesHaveOneDigest) {
  const Sha256Digest base = DigestOf("{}");
  // Merges as pairs, parts in sequences, inert settings, an unknown token that
  // no byte needs, and a file without a model type.
  EXPECT_EQ(base, DigestOf(R"({"model": {"merges": [["t", "h"], ["th", "e"],
                                         ["\u0120", "the"]]}})"));
  EXPECT_EQ(base, DigestOf(R"({"pre_tokenizer": {"type": "Sequence",
      "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": false,
                         "use_regex": true}]},
      "normalizer": {"type": "Sequence", "normalizers": []},
      "post_processor": {"type": "ByteLevel", "trim_offsets": true},
      "truncation": {"max_length": 5}, "padding": null,
      "model": {"unk_token": "the", "fuse_unk": true, "dropout": null,
                "byte_fallback": false, "continuing_subword_prefix": ""}})"));
  EXPECT_EQ(base, DigestOf(R"({"model": {"type": null}})"));
  EXPECT_EQ(base, DigestOf(R"({"pre_tokenizer": {"type": "Sequence",
      "pretokenizers": [
        {"type": "Split", "behavior": "Isolated", "invert": false, "pattern":
          {"Regex": "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"}},
        {"type": "ByteLevel", "add_prefix_space": false,
         "use_regex": false}]}})"));
  EXPECT_NE(base, DigestOf(R"({"normalizer": {"type": "NFC"}})"));
  EXPECT_NE(base, DigestOf(R"({"model": {"ignore_merges": true}})"));
}

TEST(TokenizerJsonTest, TemplatesAddTokensAroundTheText) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto tokenizer, Patched(R"({
      "post_processor": {"type": "Sequence", "processors": [
        {"type": "ByteLevel"},
        {"type": "TemplateProcessing",
         "single": [{"SpecialToken": {"id": "B", "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": "E", "type_id": 0}}],
         "special_tokens": {"B": {"id": "B", "ids": [259, 1]},
                            "E": {"id": "E", "ids": [2]}}}]}})"));
  Tokenizer::EncodeOptions options;
  options.add_special_tokens = true;
  EXPECT_EQ(tokenizer->Encode("th", options), (Ids{259, 1, 256, 2}));
}

TEST(TokenizerJsonTest, WordLevelMapsWordsAndTheUnknown) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const auto tokenizer,
      TokenizerFromJson(
          R"({"added_tokens": [], "normalizer": null, "decoder": null,
              "pre_tokenizer": {"type": "WhitespaceSplit"},
              "model": {"type": "WordLevel", "unk_token": "<pad>",
                        "vocab": {"00": 0, "ff": 1, "<pad>": 2}}})",
          "test.json"));
  const Ids ids = tokenizer->Encode(" 00 ff\nxx  00", {});
  EXPECT_EQ(ids, (Ids{0, 1, 2, 0}));
  EXPECT_EQ(*tokenizer->Decode(ids, false), "00 ff <pad> 00");
  EXPECT_EQ(tokenizer->TokenId("ff"), 1);
  EXPECT_EQ(tokenizer->Encode("", {}), Ids{});
}

TEST(TokenizerJsonTest, WhatIsNotSupportedIsNamedWithWhatIs) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"model": {"type": "Unigram"}})", "model \"Unigram\""},
      {R"({"model": {"dropout": 0.1}})", "model.dropout"},
      {R"({"model": {"byte_fallback": true}})", "model.byte_fallback"},
      {R"({"model": {"end_of_word_suffix": "</w>"}})",
       "model.end_of_word_suffix \"</w>\""},
      {R"({"normalizer": {"type": "Lowercase"}})", "normalizer \"Lowercase\""},
      {R"({"pre_tokenizer": {"type": "Metaspace"}})",
       "pre_tokenizer \"Metaspace\" is not supported; supported: Split"},
      {R"({"pre_tokenizer": null})", "without the ByteLevel"},
      {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers":
           [{"type": "ByteLevel"}, {"type": "Digits"}]}})",
       "pre_tokenizer after ByteLevel \"Digits\""},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\w+"},
           "behavior": "Isolated"}})",
       "Split pattern \"\\w+\""},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"String": " "},
           "behavior": "Isolated"}})",
       "supported: a known Regex"},
      {R"({"post_processor": {"type": "BertProcessing"}})",
       "post_processor \"BertProcessing\""},
      {R"({"decoder": {"type": "WordPiece"}})", "decoder \"WordPiece\""}};
  for (const auto& [patch, message] : cases) {
    EXPECT_THAT(Patched(patch),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("test.json: "), HasSubstr(message))))
        << patch;
  }
}

TEST(TokenizerJsonTest, SplitBehaviorsThatWouldLoseTextAreRefused) {
  json split = {{"type", "Split"},
                {"pattern",
                 {{"Regex",
                   "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?"
                   "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
                   "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}}}};
  const auto load = [&](const char* behavior, bool invert) {
    split["behavior"] = behavior;
    split["invert"] = invert;
    return Patched(
        json{{"pre_tokenizer",
              {{"type", "Sequence"},
               {"pretokenizers", json::array({split,
                                              {{"type", "ByteLevel"},
                                               {"add_prefix_space", false},
                                               {"use_regex", false}}})}}}}
            .dump());
  };
  EXPECT_THAT(load("Isolated", false), IsOk());
  EXPECT_THAT(load("Isolated", true), IsOk());
  EXPECT_THAT(load("Removed", true), IsOk());
  EXPECT_THAT(load("Removed", false),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("Split behavior \"Removed\"")));
  EXPECT_THAT(load("MergedWithNext", false),
              StatusIs(absl::StatusCode::kUnimplemented));
}

TEST(TokenizerJsonTest, MalformedFilesAreRefusedByKey) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"model": null})", "'model' is missing"},
      {R"({"model": []})", "model: looking for 'type' in array"},
      {R"({"model": {"type": 7}})", "model: 'type' is number"},
      {R"({"model": {"vocab": []}})", "'model.vocab' is array"},
      {R"({"model": {"vocab": {"x": "1"}}})", "model.vocab[\"x\"] is string"},
      {R"({"model": {"vocab": {"x": -4}}})", "-4 is no token id"},
      {R"({"model": {"vocab": {"x": 1.5}}})", "model.vocab[\"x\"] is number"},
      {R"({"model": {"vocab": {"xx": 99999999}}})", "id 99999999 is outside"},
      {R"({"model": {"vocab": {"xx": 18446744073709551615}}})",
       "is no token id"},
      {R"({"model": {"vocab": {"xx": 1}}})", "id 1 has two tokens"},
      {R"({"model": {"merges": {}}})", "'merges' is object"},
      {R"({"model": {"merges": ["th"]}})", "model.merges[0] is neither"},
      {R"({"model": {"merges": ["t h", ["a"]]}})", "model.merges[1] is neith"},
      {R"({"model": {"merges": [["a", 1]]}})", "model.merges[0] is neither"},
      {R"({"model": {"merges": ["q q"]}})", "merges[0]: result \"qq\""},
      {R"({"model": {"unk_token": 3}})", "'model.unk_token' is number"},
      {R"({"added_tokens": {}})", "'added_tokens' is object"},
      {R"({"added_tokens": [3]})", "added_tokens[0]: looking for 'id' in num"},
      {R"({"added_tokens": [{"id": 300}]})",
       "added_tokens[0]: 'content' is missing"},
      {R"({"added_tokens": [{"id": -1, "content": "x"}]})", "-1 is no token"},
      {R"({"added_tokens": [{"id": 300, "content": "x", "special": 1}]})",
       "'special' is number"},
      {R"({"normalizer": {}})", "normalizer: 'type' is missing"},
      {R"({"pre_tokenizer": {"type": "Sequence"}})",
       "'pretokenizers' is missing"},
      {R"({"post_processor": {"type": "TemplateProcessing", "single": []}})",
       "has 0 sequences"},
      {R"({"post_processor": {"type": "TemplateProcessing", "single":
           [{"SpecialToken": {"id": "B"}}, {"Sequence": {"id": "A"}}],
           "special_tokens": {}}})",
       "'B' is missing"},
      {R"({"post_processor": {"type": "TemplateProcessing", "single":
           [{"SpecialToken": {"id": "B"}}, {"Sequence": {"id": "A"}}],
           "special_tokens": {"B": {"ids": [5000]}}}})",
       "prefix token 5000"}};
  for (const auto& [patch, message] : cases) {
    EXPECT_THAT(Patched(patch),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("test.json: "), HasSubstr(message))))
        << patch;
  }
}

TEST(TokenizerJsonTest, TextThatIsNoJsonObjectIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("\xFF"),
        std::string(100000, '['), std::string("{\"a\":") + "1e999}"}) {
    EXPECT_THAT(
        TokenizerFromJson(text, "test.json"),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("test.json")))
        << text.substr(0, 20);
  }
}

}  // namespace
}  // namespace overture::engine
