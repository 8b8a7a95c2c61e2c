#include "engine/mapped_file.h"

#include <fstream>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::engine {
namespace {

using ::overture::testing::StatusIs;
using ::overture::testing::TempDir;
using ::testing::HasSubstr;

TEST(MappedFileTest, ShowsTheBytesAndMovingKeepsViewsValid) {
  const TempDir dir;
  const std::string path = dir.Join("file");
  std::ofstream(path) << "some bytes";
  OVERTURE_ASSERT_OK_AND_ASSIGN(MappedFile file, MappedFile::Open(path));
  const absl::string_view view = file.bytes();
  EXPECT_EQ(view, "some bytes");
  MappedFile moved = std::move(file);
  EXPECT_EQ(moved.bytes().data(), view.data());
  EXPECT_EQ(moved.path(), path);
  EXPECT_TRUE(file.bytes().empty());
  file = std::move(moved);
  EXPECT_EQ(file.bytes(), "some bytes");
}

TEST(MappedFileTest, WhatCannotBeMappedIsRefusedByName) {
  const TempDir dir;
  EXPECT_THAT(MappedFile::Open(dir.Join("absent")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("absent")));
  EXPECT_THAT(MappedFile::Open(dir.path().string()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("not a regular file")));
  const std::string empty = dir.Join("empty");
  std::ofstream{empty};
  EXPECT_THAT(
      MappedFile::Open(empty),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is empty")));
}

}  // namespace
}  // namespace overture::engine
