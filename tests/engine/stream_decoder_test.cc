#include "engine/stream_decoder.h"

#include <random>
#include <string>
#include <vector>

#include "engine/tokenizer_json.h"
#include "engine/unicode.h"
#include "gtest/gtest.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::MakeByteTokenizer;
using ::overture::testing::StatusIs;

TEST(StreamDecoderTest, HoldsACharacterBackUntilItIsWhole) {
  const auto tokenizer = MakeByteTokenizer();
  StreamDecoder decoder(*tokenizer);
  std::vector<std::string> steps;
  for (const int32_t id : {0x68, 0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80, 0x21}) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(std::string text, decoder.Feed(id));
    steps.push_back(text);
  }
  EXPECT_EQ(steps, (std::vector<std::string>{"h", "", "\u00e9", "", "", "",
                                             "\U0001f600", "!"}));
  EXPECT_EQ(decoder.Flush(), "");
}

TEST(StreamDecoderTest, WhatNoCharacterCanComeOfIsReplaced) {
  const auto tokenizer = MakeByteTokenizer();
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(*decoder.Feed(0xE4), "");
  EXPECT_EQ(*decoder.Feed('a'), "\uFFFDa");
  EXPECT_EQ(*decoder.Feed(0xFF), "\uFFFD");
  EXPECT_EQ(*decoder.Feed(0xE4), "");
  EXPECT_EQ(decoder.Flush(), "\uFFFD");
  EXPECT_EQ(decoder.Flush(), "");
  EXPECT_EQ(*decoder.Feed('b'), "b");
}

TEST(StreamDecoderTest, AnUnknownIdChangesNothing) {
  const auto tokenizer = MakeByteTokenizer();
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(*decoder.Feed(0xC3), "");
  EXPECT_THAT(decoder.Feed(1 << 20), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(decoder.Feed(-1), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(*decoder.Feed(0xA9), "\u00e9");
}

TEST(StreamDecoderTest, SpecialTokensAreLeftOutUnlessKept) {
  const auto tokenizer = MakeByteTokenizer();
  const int32_t special = tokenizer->TokenId("<|end|>");
  ASSERT_GE(special, 0);
  StreamDecoder without(*tokenizer);
  EXPECT_EQ(*without.Feed(special), "");
  StreamDecoder with(*tokenizer, /*keep_special=*/true);
  EXPECT_EQ(*with.Feed(special), "<|end|>");
}

TEST(StreamDecoderTest, AnyBytesComeOutAsDecodeWithReplacements) {
  const auto tokenizer = MakeByteTokenizer();
  std::mt19937 rng(5);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids(rng() % 12);
    // Lead and continuation bytes mostly, so that sequences are cut.
    for (int32_t& id : ids) id = rng() % 4 ? 0x80 + rng() % 0x80 : rng() % 256;
    StreamDecoder decoder(*tokenizer);
    std::string streamed;
    for (const int32_t id : ids) {
      OVERTURE_ASSERT_OK_AND_ASSIGN(std::string text, decoder.Feed(id));
      ASSERT_EQ(ValidUtf8Prefix(text), text.size());
      streamed += text;
    }
    streamed += decoder.Flush();
    OVERTURE_ASSERT_OK_AND_ASSIGN(std::string whole,
                                  tokenizer->Decode(ids, false));
    ASSERT_EQ(streamed, ReplaceIllFormed(whole)) << "round " << round;
  }
}

TEST(StreamDecoderTest, WordsComeOutWithTheSpacesBetween) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const auto tokenizer,
      TokenizerFromJson(
          R"({"pre_tokenizer": {"type": "WhitespaceSplit"}, "model":
              {"type": "WordLevel", "vocab": {"one": 0, "two": 1, "?": 2},
               "unk_token": "?"}})",
          "test"));
  StreamDecoder decoder(*tokenizer);
  std::string text;
  for (const int32_t id : {0, 1, 1, 0}) text += *decoder.Feed(id);
  EXPECT_EQ(text + decoder.Flush(), "one two two one");
}

}  // namespace
}  // namespace overture::engine
