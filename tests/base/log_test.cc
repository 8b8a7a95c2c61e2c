#include "base/log.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace overture {
namespace {

TEST(LogTest, ALineHasTimeSeverityAndMessage) {
  // 2026-01-31T12:00:00.123Z
  EXPECT_EQ(FormatLogLine(Severity::kInfo, 1769860800123, "up"),
            "2026-01-31T12:00:00.123Z I up\n");
  EXPECT_EQ(FormatLogLine(Severity::kWarning, 0, "w"),
            "1970-01-01T00:00:00.000Z W w\n");
  EXPECT_EQ(FormatLogLine(Severity::kError, 0, "e"),
            "1970-01-01T00:00:00.000Z E e\n");
}

TEST(LogTest, AHostileMessageStaysOneLine) {
  const std::string line =
      FormatLogLine(Severity::kInfo, 0, std::string("a\nb\x1b[2J\0c", 9));
  EXPECT_EQ(line, "1970-01-01T00:00:00.000Z I a b [2J c\n");
}

TEST(LogTest, LogWritesToStandardError) {
  ::testing::internal::CaptureStderr();
  Log(Severity::kWarning, "disk is full");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::EndsWith("Z W disk is full\n"));
}

}  // namespace
}  // namespace overture
