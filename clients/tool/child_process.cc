#include "clients/tool/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace overture::clients {
namespace {

// In the child, between fork and exec: async-signal-safe calls only.
void Redirect(const char* path, int flags, int fd) {
  if (*path == '\0') return;
  const int file = open(path, flags, 0644);
  if (file < 0 || dup2(file, fd) < 0) _exit(127);
  if (file != fd) close(file);
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const Options& options) {
  if (options.argv.empty() || access(options.argv[0].c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(
        "cannot run ", options.argv.empty() ? "nothing" : options.argv[0]));
  }
  std::vector<char*> argv;
  for (const std::string& arg : options.argv) {
    argv.push_back(const_cast<char*>(arg.c_str()));
  }
  argv.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  }
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // it died before we asked
    constexpr int kAppend = O_WRONLY | O_CREAT | O_APPEND;
    Redirect(options.stdin_path.c_str(), O_RDONLY, STDIN_FILENO);
    Redirect(options.stdout_path.c_str(), kAppend, STDOUT_FILENO);
    Redirect(options.stderr_path.c_str(), kAppend, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  ChildProcess child;
  child.pid_ = pid;
  child.pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (child.pidfd_ < 0) {
    return absl::InternalError(
        absl::StrCat("pidfd_open: ", std::strerror(errno)));
  }
  return child;
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    Kill();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::exchange(other.pidfd_, -1);
  }
  return *this;
}

absl::Status ChildProcess::Signal(int signal) {
  if (!running() || kill(pid_, signal) != 0) {
    return absl::FailedPreconditionError("the process has ended");
  }
  return absl::OkStatus();
}

absl::StatusOr<int> ChildProcess::Wait(absl::Duration timeout) {
  if (!running()) {
    return absl::FailedPreconditionError("no process to wait for");
  }
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const int64_t left_ms = std::clamp<int64_t>(
        absl::ToInt64Milliseconds(deadline - absl::Now()), 0, 1 << 30);
    struct pollfd poll_fd = {.fd = pidfd_, .events = POLLIN, .revents = 0};
    const int ready = poll(&poll_fd, 1, static_cast<int>(left_ms));
    if (ready > 0) break;
    if (ready == 0 && absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("process ", pid_, " still runs after ",
                       absl::FormatDuration(timeout)));
    }
  }
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  close(std::exchange(pidfd_, -1));
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void ChildProcess::Kill() {
  if (!running()) return;
  kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  if (pidfd_ >= 0) close(std::exchange(pidfd_, -1));
  pid_ = -1;
}

std::string SiblingProgram(const std::string& name) {
  std::error_code error;
  const std::filesystem::path self =
      std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? name : (self.parent_path() / name).string();
}

absl::Status BecomeSiblingProgram(const std::string& name,
                                  absl::Span<const std::string> args) {
  const std::string program = SiblingProgram(name);
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& arg : args) {
    argv.push_back(const_cast<char*>(arg.c_str()));
  }
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  return absl::NotFoundError(absl::StrCat("cannot run ", program));
}

}  // namespace overture::clients
