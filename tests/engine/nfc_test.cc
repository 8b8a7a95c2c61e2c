#include "engine/nfc.h"

#include <string>

#include "engine/unicode.h"
#include "gtest/gtest.h"

namespace overture::engine {
namespace {

TEST(NfcTest, ComposesReordersAndExcludes) {
  // Each form is from Unicode Standard Annex 15, figures 3 to 6, and table 2.
  EXPECT_EQ(ToNfc("\u212b"), "\u00c5");  // singleton
  EXPECT_EQ(ToNfc("\u2126"), "\u03a9");
  EXPECT_EQ(ToNfc("A\u030a"), "\u00c5");
  EXPECT_EQ(ToNfc("s\u0323\u0307"), "\u1e69");       // two marks
  EXPECT_EQ(ToNfc("s\u0307\u0323"), "\u1e69");       // in the other order
  EXPECT_EQ(ToNfc("\u1e0b\u0323"), "\u1e0d\u0307");  // recombines
  EXPECT_EQ(ToNfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(ToNfc("\u0958"), "\u0915\u093c");  // excluded
  EXPECT_EQ(ToNfc("\u0344"), "\u0308\u0301");
  EXPECT_EQ(ToNfc("\ufb01"), "\ufb01");  // compatibility only
  EXPECT_EQ(ToNfc("\u30ab\u3099"), "\u30ac");
  // A mark of the same class between blocks; a starter between does too.
  EXPECT_EQ(ToNfc("a\u0315\u0300"), "\u00e0\u0315");
  EXPECT_EQ(ToNfc("a\u0301\u0300"), "\u00e1\u0300");
  EXPECT_EQ(ToNfc("ab\u0301"), "ab\u0301");
  EXPECT_EQ(ToNfc("\u0301a"), "\u0301a");
  EXPECT_EQ(ToNfc(""), "");
}

TEST(NfcTest, HangulComposesByArithmetic) {
  EXPECT_EQ(ToNfc("\u1100\u1161"), "\uac00");
  EXPECT_EQ(ToNfc("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(ToNfc("\uac00\u11a8"), "\uac01");
  EXPECT_EQ(ToNfc("\uac01\u11a8"), "\uac01\u11a8");
  EXPECT_EQ(ToNfc("\u1100\u11a8"), "\u1100\u11a8");
  EXPECT_EQ(ToNfc("\ud7a3"), "\ud7a3");
}

TEST(NfcTest, TheQuickCheckNeverPassesATextThatChanges) {
  int num_passed = 0;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    for (const char* before : {"", "a", "\u1100", "\uac00", "\u0915"}) {
      std::string text(before);
      AppendUtf8(code, &text);
      const std::string normal = ToNfc(text);
      ASSERT_EQ(ToNfc(normal), normal) << uint32_t{code};
      if (IsSurelyNfc(text)) {
        ++num_passed;
        ASSERT_EQ(normal, text) << uint32_t{code};
      }
    }
  }
  // Quick is useless if it never passes: 2,200 characters are unstable.
  EXPECT_GT(num_passed, 5 * (0x110000 - 0x800 - 4000));
}

}  // namespace
}  // namespace overture::engine
