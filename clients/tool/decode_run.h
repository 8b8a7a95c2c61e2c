// Runs the decode worker, overture-decode, as a process of its own. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace overture::clients {

struct DecodeRun {
  std::string server;
  std::string handle;
  std::string source = "full";  // or "view"
  std::string model;
  std::string compute = "auto";
  int64_t max_tokens = 128;
};

// What the worker reports with --json.
struct DecodeReport {
  std::vector<int32_t> token_ids;  // without the EOS that ended it
  std::string text;
  std::string stopped;
  int64_t kv_bytes = 0;
  double load_seconds = 0;
  double fetch_seconds = 0;
  double seconds_per_token = 0;
};

// The worker's text streams to our standard output. INTERNAL if it fails, after
// what it said on standard error.
absl::StatusOr<DecodeReport> RunDecodeWorker(const DecodeRun& run);

// INVALID_ARGUMENT if the text is not the worker's report.
absl::StatusOr<DecodeReport> ParseDecodeReport(absl::string_view json);

}  // namespace overture::clients
