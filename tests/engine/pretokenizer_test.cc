#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/pretokenizer.h"

#include <pcre2.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/unicode.h"
#include "gtest/gtest.h"

namespace overture::engine {
namespace {

using Step = PreTokenizer::Step;
using Pieces = std::vector<std::string>;

Pieces Split(std::vector<Step> steps, absl::string_view text) {
  Pieces pieces;
  PreTokenizer(std::move(steps)).Split(text, [&](absl::string_view piece) {
    pieces.emplace_back(piece);
  });
  return pieces;
}

TEST(PreTokenizerTest, Gpt2CutsWordsWithTheSpaceBefore) {
  EXPECT_EQ(Split({Step::kGpt2}, "Hello world's  12 \u00e9t\u00e9!? \n\n x"),
            (Pieces{"Hello", " world", "'s", " ", " 12", " \u00e9t\u00e9", "!?",
                    " \n\n", " x"}));
  EXPECT_EQ(Split({Step::kGpt2}, "I'LL we'll"),
            (Pieces{"I", "'", "LL", " we", "'ll"}));
  EXPECT_EQ(Split({Step::kGpt2}, "a  "), (Pieces{"a", "  "}));
  EXPECT_EQ(Split({Step::kGpt2}, ""), Pieces{});
}

TEST(PreTokenizerTest, Llama3KeepsThreeDigitsAndLineEndsTogether) {
  EXPECT_EQ(Split({Step::kLlama3}, "I'LL 12345\t.x();\r\n\r\n  y \n z"),
            (Pieces{"I", "'LL", " ", "123", "45", "\t", ".x", "();\r\n\r\n",
                    " ", " y", " \n", " z"}));
  EXPECT_EQ(Split({Step::kLlama3}, "don'\u017f"), (Pieces{"don", "'\u017f"}));
}

TEST(PreTokenizerTest, Qwen2TakesDigitsOneByOne) {
  EXPECT_EQ(Split({Step::kQwen2}, "a 123"), (Pieces{"a", " ", "1", "2", "3"}));
}

TEST(PreTokenizerTest, SmolLmCutsDigitsFirst) {
  EXPECT_EQ(Split({Step::kDigits, Step::kGpt2}, "in 2024\u00bd!"),
            (Pieces{"in", " ", "2", "0", "2", "4", "\u00bd", "!"}));
  EXPECT_EQ(Split({Step::kDigitRuns}, "in 2024!"),
            (Pieces{"in ", "2024", "!"}));
}

TEST(PreTokenizerTest, PrefixSpaceGoesBeforeEveryPieceWithoutOne) {
  EXPECT_EQ(Split({Step::kPrefixSpace, Step::kGpt2}, "ab c"),
            (Pieces{" ab", " c"}));
  EXPECT_EQ(Split({Step::kDigits, Step::kPrefixSpace}, "a1 b"),
            (Pieces{" a", " 1", " b"}));
  EXPECT_EQ(Split({Step::kPrefixSpace}, ""), Pieces{});
}

TEST(PreTokenizerTest, WhitespaceIsDropped) {
  EXPECT_EQ(Split({Step::kWhitespace}, "  a\u3000b\n"), (Pieces{"a", "b"}));
  EXPECT_EQ(Split({Step::kWhitespace}, " \t "), Pieces{});
}

TEST(PreTokenizerTest, WithoutStepsTheTextIsOnePiece) {
  EXPECT_EQ(Split({}, "a b"), Pieces{"a b"});
}

TEST(PreTokenizerTest, IllFormedBytesAreNeitherLostNorFatal) {
  std::mt19937 rng(3);
  for (int round = 0; round < 3000; ++round) {
    std::string text(rng() % 40, ' ');
    for (char& c : text) c = static_cast<char>(rng());
    for (const Step step : {Step::kGpt2, Step::kLlama3, Step::kQwen2,
                            Step::kDigits, Step::kDigitRuns}) {
      std::string joined;
      for (const std::string& piece : Split({step}, text)) {
        ASSERT_FALSE(piece.empty());
        joined += piece;
      }
      ASSERT_EQ(joined, text) << "round " << round;
    }
  }
}

// The pattern as PCRE2 understands it, which is how it was published but for
// \s, where PCRE2 counts U+180E in.
class Pattern {
 public:
  explicit Pattern(std::string pattern) {
    const std::string spaces =
        R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029})"
        R"(\x{202F}\x{205F}\x{3000})";
    ReplaceAll("[^\\s", "[^" + spaces, &pattern);
    ReplaceAll("\\s", "[" + spaces + "]", &pattern);
    ReplaceAll("\\S", "[^" + spaces + "]", &pattern);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                              pattern.size(), PCRE2_UTF | PCRE2_UCP, &error,
                              &offset, nullptr));
    EXPECT_NE(code_, nullptr) << pattern << " at " << offset;
    EXPECT_EQ(pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE), 0);
    match_.reset(pcre2_match_data_create(1, nullptr));
  }

  Pieces Split(const std::string& text) const {
    Pieces pieces;
    for (size_t pos = 0; pos < text.size();) {
      const int found =
          pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                      text.size(), pos, PCRE2_ANCHORED, match_.get(), nullptr);
      if (found < 0) {
        ADD_FAILURE() << "PCRE2 answers " << found << " at " << pos;
        break;
      }
      const size_t end = pcre2_get_ovector_pointer(match_.get())[1];
      pieces.push_back(text.substr(pos, end - pos));
      pos = end;
    }
    return pieces;
  }

 private:
  static void ReplaceAll(const std::string& from, const std::string& to,
                         std::string* text) {
    for (size_t at = text->find(from); at != text->npos;
         at = text->find(from, at + to.size())) {
      text->replace(at, from.size(), to);
    }
  }

  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* data) const {
      pcre2_match_data_free(data);
    }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

std::string RandomText(std::mt19937& rng) {
  static const std::vector<std::u32string> kinds = {
      U"abcXYZ\u00e9\u0416\u4e2d\uac00\u017f",
      U"012\u00bd\u0664\u2167",
      U" \t\n\r\u0085\u00a0\u2003\u3000\u180e\u200b",
      U" ",
      U"\n\r",
      U"'",
      U"sStTrReEvVmMlLdD\u017f",
      U"!?.;<|>_-\u0301\u200d\U0001f600\u2014"};
  std::string text;
  const size_t size = rng() % 30;
  uint32_t weights = rng() | 1;
  for (size_t i = 0; i < size; ++i) {
    size_t kind = rng() % kinds.size();
    while (!(weights >> kind & 1)) kind = rng() % kinds.size();
    AppendUtf8(kinds[kind][rng() % kinds[kind].size()], &text);
  }
  return text;
}

TEST(PreTokenizerTest, ScannersCutAsPcre2DoesWithThePublishedPatterns) {
  const std::pair<Step, absl::string_view> rules[] = {
      {Step::kGpt2, kGpt2Pattern},
      {Step::kLlama3, kLlama3Pattern},
      {Step::kQwen2, kQwen2Pattern}};
  for (const auto& [step, published] : rules) {
    const Pattern pattern{std::string(published)};
    std::mt19937 rng(11);
    for (int i = 0; i < 100000; ++i) {
      const std::string text = RandomText(rng);
      ASSERT_EQ(Split({step}, text), pattern.Split(text))
          << "step " << int(step) << " round " << i;
    }
  }
}

TEST(PreTokenizerTest, LongRunsAreLinear) {
  // 4 MB each: one step per character is milliseconds, a quadratic scan hours.
  const std::string newline_first = "\n" + std::string(4 << 20, ' ') + "x";
  const std::string spaces = std::string(4 << 20, ' ') + "x";
  for (const Step step : {Step::kGpt2, Step::kLlama3, Step::kQwen2}) {
    EXPECT_EQ(Split({step}, spaces).size(), 2u);
    EXPECT_GE(Split({step}, newline_first).size(), 2u);
    EXPECT_EQ(Split({step}, std::string(4 << 20, 'a')).size(), 1u);
    EXPECT_EQ(Split({step}, std::string(4 << 20, '!')).size(), 1u);
  }
}

}  // namespace
}  // namespace overture::engine
