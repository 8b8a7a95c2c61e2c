// overture_demo: see demo.h.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "clients/demo/demo.h"
#include "clients/tool/flags.h"
#include "nlohmann/json.hpp"

namespace overture::clients {
namespace {

// Questions that a model of 135M parameters answers from the default document.
constexpr char kQuestion[] = "Does the program come with a warranty?";
constexpr char kSecondQuestion[] = "Who owns the copyright of this license?";
// And of any other document.
constexpr char kAnyQuestion[] = "What is this document about?";
constexpr char kAnySecondQuestion[] = "Name one detail that it mentions.";

absl::Status Run(const DemoOptions& options, const std::string& json_path) {
  if (options.model.empty()) {
    return absl::InvalidArgumentError("--model is needed");
  }
  OVERTURE_ASSIGN_OR_RETURN(DemoReport report, RunDemo(options));
  if (json_path.empty()) return absl::OkStatus();
  std::ofstream file(json_path);
  file << ToJson(report).dump(2, ' ', false,
                              nlohmann::json::error_handler_t::replace)
       << std::endl;
  if (!file) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot write ", json_path));
  }
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& args) {
  DemoOptions options;
  options.system = "You are a helpful AI assistant.";
  std::string json;
  FlagParser flags(
      "overture_demo",
      "Prefills a document over gRPC, answers from its KV in another process,\n"
      "kills the server, and asks again.");
  flags.Add("model", &options.model,
            "A .gguf file or Hugging Face folder. Needed.");
  flags.Add("file", &options.file, "The document.");
  flags.Add("question", &options.question,
            "Asked about it first; without it, one that suits the document.");
  flags.Add("second-question", &options.second_question,
            "Asked after the server was killed; likewise.");
  flags.Add("max-document-tokens", &options.max_document_tokens,
            "The rest of a longer document is cut off.");
  flags.Add("max-answer-tokens", &options.max_answer_tokens,
            "Of each answer at most.");
  flags.Add("selector", &options.selector, "Of the sparse prefill.");
  flags.Add("view", &options.view, "What the view keeps.");
  flags.Add("system", &options.system, "Message that opens the conversation.");
  flags.Add("server-flags", &options.server_flags,
            "Further flags for overtured.");
  flags.Add("json", &json, "File for the numbers.");
  absl::Status status = flags.Parse(args);
  if (status.ok() && flags.help_requested()) {
    std::fputs(flags.Help().c_str(), stdout);
    return 0;
  }
  const bool is_default = options.file == kDefaultDocument;
  if (options.question.empty()) {
    options.question = is_default ? kQuestion : kAnyQuestion;
  }
  if (options.second_question.empty()) {
    options.second_question = is_default ? kSecondQuestion : kAnySecondQuestion;
  }
  if (status.ok()) status = Run(options, json);
  if (status.ok()) return 0;
  std::fflush(stdout);
  std::fprintf(stderr, "overture_demo: %s\n", status.ToString().c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace overture::clients

int main(int argc, char** argv) {
  return overture::clients::Main(
      std::vector<std::string>(argv + 1, argv + argc));
}
