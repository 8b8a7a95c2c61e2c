// A program run as a child of this one. Owner: the child is killed (SIGKILL)
// and reaped when the object goes, and also when this process dies.
// Thread-compatible. Start and use it from a thread that outlives the child:
// Linux kills the child when the thread that started it ends.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace overture::clients {

class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> argv;  // argv[0] is the program's path
    // File that the child reads; empty: it shares our input.
    std::string stdin_path;
    // Files that receive the child's output (appended, made if absent); empty:
    // the child shares ours.
    std::string stdout_path;
    std::string stderr_path;
  };
  // NOT_FOUND if the program cannot be run, INTERNAL if no process could be
  // made.
  static absl::StatusOr<ChildProcess> Start(const Options& options);

  ChildProcess() = default;  // no child
  ChildProcess(ChildProcess&& other) noexcept { *this = std::move(other); }
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess() { Kill(); }

  pid_t pid() const { return pid_; }
  // True until Wait or Kill has seen the end.
  bool running() const { return pid_ > 0; }

  // FAILED_PRECONDITION if it is not running.
  absl::Status Signal(int signal);

  // Exit status, or 128 + the signal that ended it, as shells say it.
  // DEADLINE_EXCEEDED if it still runs after `timeout`.
  absl::StatusOr<int> Wait(absl::Duration timeout);

  // SIGKILL, then waits for the end. No-op without a child.
  void Kill();

 private:
  pid_t pid_ = -1;
  int pidfd_ = -1;  // readable once the child has ended
};

// Path of a program that lies beside this one.
std::string SiblingProgram(const std::string& name);

// This process becomes that program, with `args` behind its path. Returns only
// if that fails.
absl::Status BecomeSiblingProgram(const std::string& name,
                                  absl::Span<const std::string> args);

}  // namespace overture::clients
