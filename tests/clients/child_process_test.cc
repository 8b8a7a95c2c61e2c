#include "clients/tool/child_process.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>

#include "clients/tool/request_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::clients {
namespace {

using ::overture::testing::StatusIs;
using ::overture::testing::TempDir;

ChildProcess::Options Shell(const std::string& script) {
  return {.argv = {"/bin/sh", "-c", script}};
}

TEST(ChildProcessTest, ExitCodesAndSignalsAreTold) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(ChildProcess seven,
                                ChildProcess::Start(Shell("exit 7")));
  OVERTURE_ASSERT_OK_AND_ASSIGN(int code, seven.Wait(absl::Seconds(30)));
  EXPECT_EQ(code, 7);
  EXPECT_FALSE(seven.running());
  EXPECT_THAT(seven.Wait(absl::ZeroDuration()).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));

  OVERTURE_ASSERT_OK_AND_ASSIGN(ChildProcess killed,
                                ChildProcess::Start(Shell("kill -TERM $$")));
  OVERTURE_ASSERT_OK_AND_ASSIGN(code, killed.Wait(absl::Seconds(30)));
  EXPECT_EQ(code, 128 + SIGTERM);
}

TEST(ChildProcessTest, FilesStandInForItsStreams) {
  TempDir dir;
  std::ofstream(dir.Join("in")) << "hello";
  ChildProcess::Options options = Shell("cat; echo oops >&2");
  options.stdin_path = dir.Join("in");
  options.stdout_path = dir.Join("out");
  options.stderr_path = dir.Join("err");
  OVERTURE_ASSERT_OK_AND_ASSIGN(ChildProcess child,
                                ChildProcess::Start(options));
  OVERTURE_ASSERT_OK(child.Wait(absl::Seconds(30)));
  EXPECT_EQ(ReadTextFile(dir.Join("out")).value_or("?"), "hello");
  EXPECT_EQ(ReadTextFile(dir.Join("err")).value_or("?"), "oops\n");
}

TEST(ChildProcessTest, WaitingGivesUpAndTheDestructorKills) {
  pid_t pid = 0;
  {
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        ChildProcess child,
        ChildProcess::Start(Shell("exec tail -f /dev/null")));
    pid = child.pid();
    EXPECT_THAT(child.Wait(absl::Milliseconds(1)).status(),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_TRUE(child.running());
    ChildProcess moved = std::move(child);
    EXPECT_FALSE(child.running());  // NOLINT: what a moved-from object holds
    EXPECT_EQ(moved.pid(), pid);
  }
  EXPECT_EQ(kill(pid, 0), -1) << "the child still exists";
}

TEST(ChildProcessTest, AProgramThatIsNotThereIsNotFound) {
  EXPECT_THAT(ChildProcess::Start({.argv = {"/no/such/program"}}).status(),
              StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace overture::clients
