#include "engine/tokenizer_spec.h"

#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::MakeByteTokenizer;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

// "h", "i", "hi", the byte 0xE9 and two added tokens; ids 6 to 9 are unused.
TokenizerSpec SmallSpec() {
  TokenizerSpec spec;
  spec.tokens = {{"h", 0}, {"i", 1}, {"hi", 2}, {"\u00e9", 3}, {"?", 10}};
  spec.merges = {{"h", "i"}};
  AddedToken end;
  end.id = 4;
  end.content = "<end>";
  end.special = true;
  AddedToken tool;
  tool.id = 5;
  tool.content = "<tool>";
  spec.added = {end, tool};
  spec.steps = {PreTokenizer::Step::kGpt2};
  return spec;
}

TEST(TokenizerSpecTest, EncodesAndDecodes) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                                BuildTokenizer(SmallSpec()));
  EXPECT_EQ(tokenizer->vocab_size(), 11);
  EXPECT_EQ(tokenizer->Encode("hih<end><tool>hi", {}), (Ids{2, 0, 4, 5, 2}));
  EXPECT_EQ(*tokenizer->Decode(Ids{2, 4, 5, 0}, false), "hi<tool>h");
  EXPECT_EQ(*tokenizer->Decode(Ids{2, 4, 5, 0}, true), "hi<end><tool>h");
  EXPECT_EQ(tokenizer->TokenId("<end>"), 4);
  EXPECT_EQ(tokenizer->TokenId("hi"), 2);
  EXPECT_EQ(tokenizer->TokenId("\xE9"), 3);
  EXPECT_EQ(tokenizer->TokenId("nope"), -1);
  EXPECT_EQ(tokenizer->TokenId(""), -1);
}

TEST(TokenizerSpecTest, AddedTokensOfUntrustedTextAreText) {
  const auto tokenizer = MakeByteTokenizer();
  Tokenizer::EncodeOptions untrusted;
  untrusted.parse_special = false;
  const Ids ids = tokenizer->Encode("the<|end|>", untrusted);
  EXPECT_EQ(ids, (Ids{257, '<', '|', 'e', 'n', 'd', '|', '>'}));
  EXPECT_EQ(*tokenizer->Decode(ids, false), "the<|end|>");
}

TEST(TokenizerSpecTest, UnusedIdsDecodeToNothingAndForeignOnesAreNamed) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto tokenizer,
                                BuildTokenizer(SmallSpec()));
  EXPECT_EQ(*tokenizer->Decode(Ids{0, 7, 1}, true), "hi");
  EXPECT_THAT(tokenizer->Decode(Ids{0, 1, 11}, true),
              StatusIs(absl::StatusCode::kOutOfRange,
                       HasSubstr("ids[2] = 11 is outside [0, 11)")));
  EXPECT_THAT(tokenizer->Decode(Ids{-1}, true),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("ids[0]")));
}

TEST(TokenizerSpecTest, PrefixAndSuffixAreAddedOnRequestOnly) {
  TokenizerSpec spec = SmallSpec();
  spec.prefix_ids = {4};
  spec.suffix_ids = {5, 4};
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto tokenizer, BuildTokenizer(spec));
  Tokenizer::EncodeOptions options;
  EXPECT_EQ(tokenizer->Encode("h", options), (Ids{0}));
  options.add_special_tokens = true;
  EXPECT_EQ(tokenizer->Encode("h", options), (Ids{4, 0, 5, 4}));
  EXPECT_EQ(tokenizer->Encode("", options), (Ids{4, 5, 4}));
}

TEST(TokenizerSpecTest, IllFormedBytesAreEncodedOneByOne) {
  const auto tokenizer = MakeByteTokenizer();
  // The byte alone, though "\xE4" and "t" would be one piece of the pattern.
  EXPECT_EQ(tokenizer->Encode("th\xE4th\xFF\xC3\xA9", {}),
            (Ids{256, 0xE4, 256, 0xFF, 0xC3, 0xA9}));
  std::mt19937 rng(9);
  for (int round = 0; round < 3000; ++round) {
    std::string text(rng() % 64, ' ');
    for (char& c : text) c = static_cast<char>(rng());
    ASSERT_EQ(*tokenizer->Decode(tokenizer->Encode(text, {}), true), text)
        << "round " << round;
  }
}

TEST(TokenizerSpecTest, NfcAppliesAroundAddedTokensAndIllFormedBytes) {
  TokenizerSpec spec = SmallSpec();
  spec.nfc = true;
  // The two bytes of U+00E9; "e" and U+0301 have no tokens.
  spec.tokens.push_back({"\u00c3", 6});
  spec.tokens.push_back({"\u00a9", 7});
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto tokenizer, BuildTokenizer(spec));
  EXPECT_EQ(tokenizer->Encode("e\u0301\xE9<end>e\u0301", {}),
            (Ids{6, 7, 3, 4, 6, 7}));
}

TEST(TokenizerSpecTest, NormalizedTokensAreFoundInNormalizedText) {
  TokenizerSpec spec = SmallSpec();
  spec.nfc = true;
  spec.added[1].content = "e\u0301";
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto raw, BuildTokenizer(spec));
  EXPECT_EQ(raw->Encode("e\u0301", {}), (Ids{5}));
  EXPECT_EQ(raw->Encode("\u00e9", {}), Ids{});
  spec.added[1].normalized = true;
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto normalized, BuildTokenizer(spec));
  EXPECT_EQ(normalized->Encode("e\u0301", {}), (Ids{5}));
  EXPECT_EQ(normalized->Encode("\u00e9", {}), (Ids{5}));
  EXPECT_EQ(normalized->TokenId("\u00e9"), 5);
}

TEST(TokenizerSpecTest, MalformedSpecsAreRefusedByName) {
  const auto expect_refused =
      [](const std::function<void(TokenizerSpec*)>& edit,
         const std::string& message) {
        TokenizerSpec spec = SmallSpec();
        edit(&spec);
        EXPECT_THAT(
            BuildTokenizer(spec),
            StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
      };
  expect_refused(
      [](auto* s) {
        s->tokens.push_back({"x", 2});
      },
      "id 2 has two tokens");
  expect_refused(
      [](auto* s) {
        s->tokens.push_back({"hi", 7});
      },
      "are both \"hi\"");
  expect_refused(
      [](auto* s) {
        s->tokens.push_back({"x", -1});
      },
      "id -1 is outside");
  expect_refused(
      [](auto* s) {
        s->tokens.push_back({"x", 1 << 30});
      },
      "id 1073741824 is outside");
  expect_refused([](auto* s) { s->added[0].id = 1 << 30; }, "is outside");
  expect_refused([](auto* s) { s->added[0].id = 5; }, "id 5 has two tokens");
  expect_refused([](auto* s) { s->added[0].id = 1; }, "id 1 has two tokens");
  expect_refused(
      [](auto* s) {
        s->tokens.push_back({"<end>", 6});
      },
      "added token \"<end>\" has id 4, but 6 in the vocabulary");
  expect_refused(
      [](auto* s) {
        s->merges.push_back({"h", "?"});
      },
      "merges[1]: result \"h?\"");
  expect_refused(
      [](auto* s) {
        s->merges.push_back({"h h", "?"});
      },
      "merges[1] has a character outside");
  expect_refused([](auto* s) { s->unknown = "<unk>"; },
                 "unknown token \"<unk>\"");
  expect_refused([](auto* s) { s->prefix_ids = {6}; }, "prefix token 6");
  expect_refused([](auto* s) { s->suffix_ids = {99}; }, "suffix token 99");
  expect_refused(
      [](auto* s) {
        s->model = TokenizerSpec::Model::kWordLevel;
        s->unknown = "word";
      },
      "unknown token \"word\"");
}

Sha256Digest DigestOf(const std::function<void(TokenizerSpec*)>& edit) {
  TokenizerSpec spec = SmallSpec();
  edit(&spec);
  const auto tokenizer = BuildTokenizer(spec);
  EXPECT_THAT(tokenizer, overture::testing::IsOk());
  return (*tokenizer)->digest();
}

TEST(TokenizerSpecTest, TheDigestCoversWhatDecidesIds) {
  const Sha256Digest base = DigestOf([](auto*) {});
  // Not the order of the file, nor padding, nor an added token's double life.
  EXPECT_EQ(base, DigestOf([](auto* s) {
              std::swap(s->tokens[0], s->tokens[2]);
              s->min_vocab_size = 64;
              s->tokens.push_back({"<end>", 4});
            }));
  const std::vector<std::function<void(TokenizerSpec*)>> edits = {
      [](auto* s) { s->tokens[4].text = "!"; },
      [](auto* s) { s->tokens[4].id = 9; },
      [](auto* s) { s->merges.clear(); },
      [](auto* s) { s->added.pop_back(); },
      [](auto* s) { s->added[0].special = false; },
      [](auto* s) { s->added[0].lstrip = true; },
      [](auto* s) { s->added[0].rstrip = true; },
      [](auto* s) { s->added[0].single_word = true; },
      [](auto* s) { s->added[0].normalized = true; },
      [](auto* s) { s->added[0].content = "<End>"; },
      [](auto* s) { s->steps = {PreTokenizer::Step::kQwen2}; },
      [](auto* s) { s->nfc = true; },
      [](auto* s) { s->ignore_merges = true; },
      [](auto* s) { s->unknown = "?"; },
      [](auto* s) { s->prefix_ids = {4}; },
      [](auto* s) { s->suffix_ids = {4}; }};
  std::vector<Sha256Digest> digests = {base};
  for (size_t i = 0; i < edits.size(); ++i) {
    digests.push_back(DigestOf(edits[i]));
    for (size_t j = 0; j <= i; ++j) {
      EXPECT_NE(digests[i + 1], digests[j]) << "edits " << i << " and " << j;
    }
  }
}

TEST(TokenizerSpecTest, LongTextsTakeNoQuadraticTime) {
  const auto tokenizer = MakeByteTokenizer();
  std::string words;
  while (words.size() < 4 << 20) words += "the thermal theory, then; ";
  for (const std::string& text :
       {words, std::string(1 << 20, 'x'), std::string(4 << 20, ' '),
        std::string(1 << 20, '\xFF')}) {
    const auto begin = std::chrono::steady_clock::now();
    const Ids ids = tokenizer->Encode(text, {});
    const std::chrono::duration<double> seconds =
        std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(*tokenizer->Decode(ids, true), text);
    // About 0.3 s at most here; quadratic would be hours.
    EXPECT_LT(seconds.count(), 20.0);
  }
}

TEST(ByteLevelTest, TheAlphabetIsABijectionOverAllBytes) {
  std::string bytes;
  EXPECT_TRUE(FromByteLevel("\u0120a\u010a\u00e9\u0143", &bytes));
  EXPECT_EQ(bytes, " a\n\xE9\xAD");
  EXPECT_FALSE(FromByteLevel("a b", &bytes));
  EXPECT_EQ(bytes, "a b");
  EXPECT_FALSE(FromByteLevel("\u0144", &bytes));
  EXPECT_FALSE(FromByteLevel("\xFF", &bytes));
}

}  // namespace
}  // namespace overture::engine
