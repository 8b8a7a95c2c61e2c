#include "clients/tool/write_file.h"

#include <filesystem>
#include <string>

#include "clients/tool/request_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::clients {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

class WriteFileTest : public ::testing::Test {
 protected:
  overture::testing::TempDir dir_;
  const std::string path_ = dir_.Join("summary.md");
};

TEST_F(WriteFileTest, MakesAndReplaces) {
  OVERTURE_ASSERT_OK(WriteFile(path_, "the first, longer text"));
  OVERTURE_ASSERT_OK(WriteFile(path_, "second"));
  EXPECT_EQ(ReadTextFile(path_).value(), "second");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

TEST_F(WriteFileTest, AFailureLeavesTheOldFile) {
  OVERTURE_ASSERT_OK(WriteFile(path_, "old"));
  std::filesystem::create_directory(path_ + ".new");
  EXPECT_THAT(WriteFile(path_, "new").message(),
              HasSubstr("summary.md.new: Is a directory"));
  EXPECT_EQ(ReadTextFile(path_).value(), "old");
}

TEST_F(WriteFileTest, WritesThroughALink) {
  OVERTURE_ASSERT_OK(WriteFile(path_, "old"));
  std::filesystem::create_symlink(path_, dir_.Join("link"));
  OVERTURE_ASSERT_OK(WriteFile(dir_.Join("link"), "new"));
  EXPECT_EQ(ReadTextFile(path_).value(), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(dir_.Join("link")));
}

TEST_F(WriteFileTest, SaysWhatTheSystemSays) {
  EXPECT_THAT(WriteFile(dir_.Join("absent/summary.md"), "text"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("No such file")));
  EXPECT_THAT(WriteFile("/dev/full", "text"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("/dev/full: No space left")));
}

TEST_F(WriteFileTest, WhetherItCouldIsKnownBefore) {
  OVERTURE_EXPECT_OK(CheckWritable(path_));
  OVERTURE_ASSERT_OK(WriteFile(path_, "old"));
  OVERTURE_EXPECT_OK(CheckWritable(path_));
  EXPECT_EQ(ReadTextFile(path_).value(), "old");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
  OVERTURE_EXPECT_OK(CheckWritable("/dev/null"));

  EXPECT_THAT(CheckWritable(""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CheckWritable(dir_.Join("absent/summary.md")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("No such file")));
  EXPECT_THAT(CheckWritable(dir_.Join("")).message(),
              HasSubstr("Is a directory"));
}

}  // namespace
}  // namespace overture::clients
