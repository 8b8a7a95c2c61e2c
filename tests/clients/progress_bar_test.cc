#include "clients/tool/progress_bar.h"

#include <cstdio>

#include "gtest/gtest.h"

namespace overture::clients {
namespace {

TEST(ProgressBarTest, TheLineShowsTheShareAndStaysInBounds) {
  EXPECT_EQ(ProgressBar::Line("p", 0, "x"),
            "p [..............................]   0% x");
  EXPECT_EQ(ProgressBar::Line("p", 0.5, "x"),
            "p [###############...............]  50% x");
  EXPECT_EQ(ProgressBar::Line("p", 7, ""),
            "p [##############################] 100% ");
  EXPECT_EQ(ProgressBar::Line("p", -1, ""),
            "p [..............................]   0% ");
}

TEST(ProgressBarTest, WithoutATerminalNothingIsWritten) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    ProgressBar bar("p", file);
    bar.Update(0.5, "x");
  }
  EXPECT_EQ(std::ftell(file), 0);
  std::fclose(file);
}

}  // namespace
}  // namespace overture::clients
