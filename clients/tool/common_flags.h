// Flags that several subcommands share. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cpp/client.h"
#include "clients/tool/flags.h"
#include "nlohmann/json_fwd.hpp"

namespace overture::clients {

inline constexpr char kDefaultServer[] = "127.0.0.1:50051";

// --server, --timeout-s, --json.
struct ServerFlags {
  std::string server = kDefaultServer;
  double timeout_s = 0;
  bool json = false;

  void AddTo(FlagParser& flags);
  absl::StatusOr<std::unique_ptr<OvertureClient>> Connect() const;
  CallOptions call() const;
};

// --text, --file, --tokens: exactly one of them.
struct PromptFlags {
  std::string text;
  std::string file;
  std::string tokens;

  void AddTo(FlagParser& flags);
  // The prompt as text, or as ids if --tokens was given.
  struct Prompt {
    bool is_text = false;
    std::string text;
    std::vector<int32_t> ids;
  };
  absl::StatusOr<Prompt> Read(const FlagParser& flags) const;
};

// Parses, or prints the help and sets `*done`.
absl::Status ParseOrHelp(FlagParser& flags, absl::Span<const std::string> args,
                         bool* done);

// One line on standard output; bytes that are no UTF-8 become U+FFFD.
void PrintJson(const nlohmann::json& json);

}  // namespace overture::clients
