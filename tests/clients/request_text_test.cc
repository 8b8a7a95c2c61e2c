#include "clients/tool/request_text.h"

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::clients {
namespace {

using ::overture::testing::StatusIs;
using ::overture::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ParseViewTest, NumbersMayBeLeftOutFromTheRight) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(v1::ViewSpec all,
                                ParseView("snapkv:16,512,average,5"));
  EXPECT_EQ(all.snap_kv().window(), 16);
  EXPECT_EQ(all.snap_kv().capacity(), 512);
  EXPECT_EQ(all.snap_kv().pooling(), v1::ViewSpec::SnapKv::POOLING_AVERAGE);
  EXPECT_EQ(all.snap_kv().pooling_width(), 5);
  OVERTURE_ASSERT_OK_AND_ASSIGN(v1::ViewSpec none, ParseView("snapkv"));
  EXPECT_TRUE(none.has_snap_kv());
  EXPECT_EQ(none.snap_kv().capacity(), 0);
}

TEST(ParseViewTest, WhatIsNoViewIsNamed) {
  EXPECT_THAT(ParseView("h2o").status(), StatusIs(kInvalid, HasSubstr("h2o")));
  EXPECT_THAT(ParseView("snapkv:1,2,min").status(),
              StatusIs(kInvalid, HasSubstr("'min'")));
  EXPECT_THAT(ParseView("snapkv:1,2,max,3,4").status(), StatusIs(kInvalid));
}

TEST(ParseTokensTest, IdsComeFromTheLineOrFromAFile) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(std::vector<int32_t> ids,
                                ParseTokens("1, 2,3"));
  EXPECT_THAT(ids, ElementsAre(1, 2, 3));
  TempDir dir;
  std::ofstream(dir.Join("ids")) << "4\n5,6\n";
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      ids, ParseTokens(absl::StrCat("@", dir.Join("ids"))));
  EXPECT_THAT(ids, ElementsAre(4, 5, 6));
  EXPECT_THAT(ParseTokens("1,two").status(),
              StatusIs(kInvalid, HasSubstr("token 1 is 'two'")));
  EXPECT_THAT(ParseTokens(absl::StrCat("@", dir.Join("none"))).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

TEST(ReadTextFileTest, AFolderIsAnErrorAndALargeFileIsWhole) {
  TempDir dir;
  EXPECT_THAT(ReadTextFile(dir.Join(".")).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("folder")));
  // More than one buffer and no multiple of it.
  const std::string text(200'001, 'x');
  std::ofstream(dir.Join("large")) << text;
  EXPECT_EQ(ReadTextFile(dir.Join("large")).value_or("?"), text);
}

TEST(FormatTest, BytesAndSecondsReadWell) {
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1500), "1.5 kB");
  EXPECT_EQ(FormatBytes(147'300'000), "147.3 MB");
  EXPECT_EQ(FormatBytes(2'000'000'000'000), "2.0 TB");
  EXPECT_EQ(FormatSeconds(0.0123), "12.3 ms");
  EXPECT_EQ(FormatSeconds(12.345), "12.35 s");
}

}  // namespace
}  // namespace overture::clients
