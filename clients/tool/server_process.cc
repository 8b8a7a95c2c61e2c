#include "clients/tool/server_process.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "clients/tool/request_text.h"

namespace overture::clients {
namespace {

// The last 2,000 characters: the reason stands at the end.
std::string Tail(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadTextFile(path);
  if (!text.ok()) return "";
  return absl::StrCat(
      "; its log ends with:\n",
      text->substr(text->size() - std::min<size_t>(text->size(), 2000)));
}

}  // namespace

absl::StatusOr<ServerProcess> ServerProcess::Start(const Options& options) {
  const std::filesystem::path work = options.work_dir;
  const std::string port_file = (work / "overtured.port").string();
  const std::string log = (work / "overtured.log").string();
  std::error_code ignored;
  std::filesystem::remove(port_file, ignored);

  std::vector<std::string> argv = {
      options.program, absl::StrCat("--model=", options.model),
      absl::StrCat("--data_dir=", options.data_dir), "--listen=127.0.0.1:0",
      absl::StrCat("--port_file=", port_file)};
  argv.insert(argv.end(), options.flags.begin(), options.flags.end());
  ServerProcess server;
  OVERTURE_ASSIGN_OR_RETURN(
      server.process_,
      ChildProcess::Start(
          {.argv = argv, .stdout_path = log, .stderr_path = log}));

  const absl::Time deadline = absl::Now() + options.ready_timeout;
  while (true) {
    // The file appears whole, once the server listens.
    std::ifstream file(port_file);
    int port = 0;
    if (file >> port && port > 0) {
      server.address_ = absl::StrCat("127.0.0.1:", port);
      return server;
    }
    const absl::StatusOr<int> ended =
        server.process_.Wait(absl::Milliseconds(10));
    if (ended.ok()) {
      return absl::InternalError(
          absl::StrCat("overtured ended with exit code ", *ended, Tail(log)));
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("overtured is not ready after ",
                       absl::FormatDuration(options.ready_timeout), Tail(log)));
    }
  }
}

}  // namespace overture::clients
