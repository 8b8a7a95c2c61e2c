#include "clients/tool/decode_run.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "clients/tool/child_process.h"
#include "clients/tool/request_text.h"
#include "nlohmann/json.hpp"

namespace overture::clients {

absl::StatusOr<DecodeReport> ParseDecodeReport(absl::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(
      text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  try {
    return DecodeReport{
        .token_ids = json.at("token_ids").get<std::vector<int32_t>>(),
        .text = json.at("text").get<std::string>(),
        .stopped = json.at("stopped").get<std::string>(),
        .kv_bytes = json.at("kv_bytes").get<int64_t>(),
        .load_seconds = json.at("load_seconds").get<double>(),
        .fetch_seconds = json.at("fetch_seconds").get<double>(),
        .seconds_per_token = json.at("seconds_per_token").get<double>()};
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the worker's report is malformed: ", error.what()));
  }
}

absl::StatusOr<DecodeReport> RunDecodeWorker(const DecodeRun& run) {
  std::error_code error;
  std::string report_path =
      (std::filesystem::temp_directory_path(error) / "overture-answer-XXXXXX")
          .string();
  const int fd = mkstemp(report_path.data());
  if (fd < 0) {
    return absl::InternalError(absl::StrCat("cannot make ", report_path));
  }
  close(fd);
  const absl::Cleanup remove = [&report_path] { unlink(report_path.c_str()); };

  OVERTURE_ASSIGN_OR_RETURN(
      ChildProcess worker,
      ChildProcess::Start(
          {.argv = {SiblingProgram("overture-decode"), "--server", run.server,
                    "--handle", run.handle, "--source", run.source, "--model",
                    run.model, "--compute", run.compute, "--max-tokens",
                    absl::StrCat(run.max_tokens), "--json", report_path}}));
  OVERTURE_ASSIGN_OR_RETURN(int exit_code,
                            worker.Wait(absl::InfiniteDuration()));
  if (exit_code != 0) {
    return absl::InternalError(
        absl::StrCat("the decode worker failed with exit code ", exit_code));
  }
  OVERTURE_ASSIGN_OR_RETURN(std::string report, ReadTextFile(report_path));
  return ParseDecodeReport(report);
}

}  // namespace overture::clients
