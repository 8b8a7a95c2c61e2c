// What the demo measured: as a table for people, as JSON for programs.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "clients/cpp/client.h"
#include "clients/tool/decode_run.h"
#include "nlohmann/json_fwd.hpp"

namespace overture::clients {

struct PrefillRow {
  std::string name;  // "dense, cold"
  PrefillResult result;
};

struct AnswerRow {
  std::string name;  // "dense, full KV"
  std::string question;
  DecodeReport report;
};

struct DemoReport {
  std::string model;
  std::string document;
  std::vector<PrefillRow> prefills;
  std::vector<AnswerRow> answers;
  double restart_seconds = 0;  // from SIGKILL until the server serves again
  // Of the first turn's tokens, reused by the second; within [0, 1].
  double reused_fraction = 0;
  // Cold TTFT over warm TTFT.
  double ttft_ratio = 0;
};

// Prompt tokens per second until the first token.
double PromptRate(const PrefillResult& result);

// Whether a second turn reused what it should: 90% of the first turn's tokens,
// or, where that is less, all but the last 64 of its own, which a prefill
// always computes.
bool ReusedEnough(int64_t first_tokens, int64_t second_tokens,
                  int64_t reused_tokens);

std::string ToText(const DemoReport& report);
nlohmann::json ToJson(const DemoReport& report);

}  // namespace overture::clients
