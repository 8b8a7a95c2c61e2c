// An overtured of our own, as a child process on a free port of this machine:
// for the demo and the end-to-end tests. Owner: the server dies with the
// object. Thread rule: as ChildProcess.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "clients/tool/child_process.h"

namespace overture::clients {

class ServerProcess {
 public:
  struct Options {
    std::string program;   // path of overtured
    std::string model;     // as its flag
    std::string data_dir;  // store; survives the process
    std::string work_dir;  // exists: port file, and overtured.log with all it
                           // says, appended over restarts
    std::vector<std::string> flags;  // further ones, "--name=value"
    absl::Duration ready_timeout = absl::Seconds(60);
  };
  // Returns once it serves. INTERNAL if it ended instead, DEADLINE_EXCEEDED if
  // it took too long, both with the last lines of its log.
  static absl::StatusOr<ServerProcess> Start(const Options& options);

  ServerProcess() = default;  // no server

  const std::string& address() const { return address_; }
  ChildProcess& process() { return process_; }

 private:
  ChildProcess process_;
  std::string address_;
};

}  // namespace overture::clients
