#include "clients/cpp/utf8.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::clients {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

TEST(CheckUtf8Test, WellFormedTextPasses) {
  using std::string_literals::operator""s;
  // The first and last character of every length, and both sides of the
  // surrogates.
  for (const std::string& text :
       {""s, "\0\x7f"s, "\xc2\x80\xdf\xbf"s, "\xe0\xa0\x80\xef\xbf\xbf"s,
        "\xed\x9f\xbf\xee\x80\x80"s, "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"s}) {
    OVERTURE_EXPECT_OK(CheckUtf8(text, "text"));
  }
}

TEST(CheckUtf8Test, OtherBytesAreRefusedWithTheirPlace) {
  for (const char* bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2\x41",
        "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe2\x82", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf0\x90\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_THAT(CheckUtf8(std::string("abc") + bad, "text"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("text: byte 3 is 0x")));
  }
  EXPECT_THAT(CheckUtf8("caf\xe9 au lait", "text"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("byte 3 is 0xe9")));
}

}  // namespace
}  // namespace overture::clients
