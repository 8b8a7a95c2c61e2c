#include "engine/unicode.h"

#include <string>

#include "gtest/gtest.h"

namespace overture::engine {
namespace {

TEST(Utf8Test, EveryScalarValueRoundTripsAndNothingElseDecodes) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    AppendUtf8(code, &text);
    const DecodedChar forward = DecodeUtf8(text, 0);
    ASSERT_EQ(forward.code, code);
    ASSERT_EQ(forward.size, text.size());
    text.insert(0, "\xC3\xA9");
    const DecodedChar back = DecodeUtf8Before(text, text.size());
    ASSERT_EQ(back.code, code);
    ASSERT_EQ(back.size + 2, text.size());
  }
  for (const char* bad :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC3", "\xE0\x9F\xBF",
        "\xE4\xBD", "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF",
        "\xF0\x9F\x98", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(DecodeUtf8(bad, 0).size, 0u) << testing::PrintToString(bad);
    EXPECT_EQ(ValidUtf8Prefix(std::string("01234567ab") + bad), 10u);
  }
  EXPECT_EQ(DecodeUtf8("", 0).size, 0u);
  EXPECT_EQ(DecodeUtf8Before("", 0).size, 0u);
  EXPECT_EQ(DecodeUtf8Before("a\x80", 2).size, 0u);
}

TEST(Utf8Test, CompletePrefixHoldsBackOnlyWhatCanStillBecomeACharacter) {
  EXPECT_EQ(CompleteUtf8Prefix(""), 0u);
  EXPECT_EQ(CompleteUtf8Prefix("ab"), 2u);
  EXPECT_EQ(CompleteUtf8Prefix("a\xC3"), 1u);
  EXPECT_EQ(CompleteUtf8Prefix("a\xC3\xA9"), 3u);
  EXPECT_EQ(CompleteUtf8Prefix("\xE4\xBD"), 0u);
  EXPECT_EQ(CompleteUtf8Prefix("x\xF0\x9F\x98"), 1u);
  EXPECT_EQ(CompleteUtf8Prefix("x\xF0\x9F\x98\x80"), 5u);
  // Nothing can complete these.
  EXPECT_EQ(CompleteUtf8Prefix("a\xFF"), 2u);
  EXPECT_EQ(CompleteUtf8Prefix("a\xE0\x80"), 3u);
  EXPECT_EQ(CompleteUtf8Prefix("a\xED\xA0"), 3u);
  EXPECT_EQ(CompleteUtf8Prefix("a\x80\x80\x80"), 4u);
}

TEST(Utf8Test, IllFormedStretchesAreReplacedByLongestPrefixes) {
  // The example of the Unicode Standard, table 3-11.
  EXPECT_EQ(ReplaceIllFormed("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF"
                             "\x64"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(ReplaceIllFormed("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceIllFormed("\xE4\xBD"), "\uFFFD");
  EXPECT_EQ(ReplaceIllFormed("na\xC3\xAF"), "na\xC3\xAF");
}

TEST(CharClassTest, KnowsThePropertiesThePatternsName) {
  for (const char32_t c : {U'a', U'Z', U'\u00aa', U'\u00e9', U'\u0416',
                           U'\u4e00', U'\uac00', U'\U00020000'}) {
    EXPECT_EQ(ClassOf(c), CharClass::kLetter) << uint32_t{c};
    EXPECT_TRUE(IsWordChar(c));
  }
  for (const char32_t c : {U'0', U'9', U'\u00bd', U'\u0664', U'\u2167'}) {
    EXPECT_EQ(ClassOf(c), CharClass::kNumber) << uint32_t{c};
  }
  for (const char32_t c :
       {U' ', U'\t', U'\r', U'\u0085', U'\u00a0', U'\u3000'}) {
    EXPECT_EQ(ClassOf(c), CharClass::kSpace) << uint32_t{c};
    EXPECT_FALSE(IsWordChar(c));
  }
  // U+180E and U+200B were white space once; marks are none of the three.
  for (const char32_t c : {U'!', U'_', U'\u180e', U'\u200b', U'\u0301',
                           U'\U0001f600', U'\U0010ffff'}) {
    EXPECT_EQ(ClassOf(c), CharClass::kOther) << uint32_t{c};
  }
  EXPECT_EQ(ClassOf(0x110000), CharClass::kOther);
  EXPECT_TRUE(IsWordChar('_'));
  EXPECT_TRUE(IsWordChar('7'));
  EXPECT_TRUE(IsWordChar(0x301));
  EXPECT_FALSE(IsWordChar('-'));
  EXPECT_FALSE(IsWordChar(0xBD));
}

}  // namespace
}  // namespace overture::engine
