#include "clients/tool/common_flags.h"

#include <cstdio>

#include "base/status_macros.h"
#include "clients/tool/request_text.h"
#include "nlohmann/json.hpp"

namespace overture::clients {

void ServerFlags::AddTo(FlagParser& flags) {
  flags.Add("server", &server, "Address of the server, host:port.");
  flags.Add("timeout-s", &timeout_s,
            "Seconds until the call is given up; 0: "
            "never.");
  flags.Add("json", &json, "Print one line of JSON.");
}

absl::StatusOr<std::unique_ptr<OvertureClient>> ServerFlags::Connect() const {
  // A person waits: a server that is up answers within milliseconds.
  return OvertureClient::Connect(server, {.connect_timeout = absl::Seconds(3)});
}

CallOptions ServerFlags::call() const {
  if (timeout_s <= 0) return {};
  return {.timeout = absl::Seconds(timeout_s)};
}

void PromptFlags::AddTo(FlagParser& flags) {
  flags.Add("text", &text,
            "The prompt; special tokens such as <|im_start|> are recognised.");
  flags.Add("file", &file, "File with the prompt's text; -: standard input.");
  flags.Add("tokens", &tokens,
            "The prompt's ids: 1,2,3, or @FILE with such a list.");
}

absl::StatusOr<PromptFlags::Prompt> PromptFlags::Read(
    const FlagParser& flags) const {
  const int given = static_cast<int>(flags.Given("text")) +
                    static_cast<int>(flags.Given("file")) +
                    static_cast<int>(flags.Given("tokens"));
  if (given != 1) {
    return absl::InvalidArgumentError(
        "exactly one of --text, --file and --tokens is needed");
  }
  Prompt prompt;
  if (flags.Given("tokens")) {
    OVERTURE_ASSIGN_OR_RETURN(prompt.ids, ParseTokens(tokens));
    return prompt;
  }
  prompt.is_text = true;
  prompt.text = text;
  if (flags.Given("file")) {
    OVERTURE_ASSIGN_OR_RETURN(prompt.text, ReadTextFile(file));
  }
  return prompt;
}

absl::Status ParseOrHelp(FlagParser& flags, absl::Span<const std::string> args,
                         bool* done) {
  OVERTURE_RETURN_IF_ERROR(flags.Parse(args));
  *done = flags.help_requested();
  if (*done) std::fputs(flags.Help().c_str(), stdout);
  return absl::OkStatus();
}

void PrintJson(const nlohmann::json& json) {
  std::puts(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                .c_str());
}

}  // namespace overture::clients
