#include "clients/demo/report.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "clients/tool/prefill_run.h"
#include "clients/tool/request_text.h"
#include "nlohmann/json.hpp"

namespace overture::clients {
namespace {

// Cells as text, every column as wide as its widest cell; the first column to
// the left, numbers to the right.
std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string fill(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&text, i == 0 ? "  " : "  ", i == 0 ? row[i] : fill,
                      i == 0 ? fill : row[i]);
    }
    text += '\n';
  }
  return text;
}

}  // namespace

double PromptRate(const PrefillResult& result) {
  const v1::PrefillStats& stats = result.done.stats();
  return stats.ttft_seconds() > 0
             ? static_cast<double>(result.done.num_tokens()) /
                   stats.ttft_seconds()
             : 0;
}

bool ReusedEnough(int64_t first_tokens, int64_t second_tokens,
                  int64_t reused_tokens) {
  return 10 * reused_tokens >= 9 * first_tokens ||
         reused_tokens >= second_tokens - 64;
}

std::string ToText(const DemoReport& report) {
  std::vector<std::vector<std::string>> prefills = {
      {"prefill", "tokens", "computed", "reused", "density", "TTFT", "tok/s",
       "KV", "view", "persisted"}};
  for (const PrefillRow& row : report.prefills) {
    const v1::PrefillStats& stats = row.result.done.stats();
    prefills.push_back(
        {row.name, absl::StrCat(row.result.done.num_tokens()),
         absl::StrCat(stats.computed_tokens()),
         absl::StrCat(stats.reused_tokens()),
         absl::StrFormat("%.3f", stats.density()),
         FormatSeconds(stats.ttft_seconds()),
         absl::StrFormat("%.0f", PromptRate(row.result)),
         FormatBytes(stats.kv_bytes()),
         stats.view_bytes() > 0 ? FormatBytes(stats.view_bytes()) : "-",
         row.result.done.persisted() ? "yes" : "no"});
  }
  std::vector<std::vector<std::string>> answers = {
      {"answer", "KV delivered", "fetched in", "tokens", "per token"}};
  for (const AnswerRow& row : report.answers) {
    answers.push_back({row.name, FormatBytes(row.report.kv_bytes),
                       FormatSeconds(row.report.fetch_seconds),
                       absl::StrCat(row.report.token_ids.size()),
                       FormatSeconds(row.report.seconds_per_token)});
  }
  std::string text = absl::StrCat(Table(prefills), "\n", Table(answers), "\n");
  std::string question;
  for (const AnswerRow& row : report.answers) {
    if (row.question != question) {
      absl::StrAppend(&text, "  Q: ", row.question, "\n");
      question = row.question;
    }
    absl::StrAppend(
        &text, "  ", row.name, ": ",
        absl::StrReplaceAll(absl::StripAsciiWhitespace(row.report.text),
                            {{"\n", "\n      "}}),
        "\n");
  }
  absl::StrAppendFormat(
      &text,
      "\nSecond turn after kill -9: %.1f%% of the first turn reused, first "
      "token %.1f times sooner than cold.\n",
      100 * report.reused_fraction, report.ttft_ratio);
  return text;
}

nlohmann::json ToJson(const DemoReport& report) {
  nlohmann::json prefills = nlohmann::json::array();
  for (const PrefillRow& row : report.prefills) {
    nlohmann::json json = ToJson(row.result);
    json["name"] = row.name;
    json["prompt_tokens_per_second"] = PromptRate(row.result);
    prefills.push_back(std::move(json));
  }
  nlohmann::json answers = nlohmann::json::array();
  for (const AnswerRow& row : report.answers) {
    answers.push_back({{"name", row.name},
                       {"question", row.question},
                       {"text", row.report.text},
                       {"token_ids", row.report.token_ids},
                       {"stopped", row.report.stopped},
                       {"kv_bytes", row.report.kv_bytes},
                       {"load_seconds", row.report.load_seconds},
                       {"fetch_seconds", row.report.fetch_seconds},
                       {"seconds_per_token", row.report.seconds_per_token}});
  }
  return {{"model", report.model},
          {"document", report.document},
          {"prefills", std::move(prefills)},
          {"answers", std::move(answers)},
          {"restart_seconds", report.restart_seconds},
          {"reused_fraction", report.reused_fraction},
          {"ttft_ratio", report.ttft_ratio}};
}

}  // namespace overture::clients
