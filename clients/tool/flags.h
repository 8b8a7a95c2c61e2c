// Command-line flags of one command, with the help text beside each. Small on
// purpose: subcommands need flags of their own, which absl's global flags do
// not offer. One thread.
//
//   FlagParser flags("overture lookup", "Longest stored prefix of a prompt.");
//   flags.Add("server", &server, "Address of the server.");
//   OVERTURE_RETURN_IF_ERROR(flags.Parse(args));
//
// Written `--name value` or `--name=value`; a bool also `--name` and
// `--name=false`. Dashes and underscores in names are the same.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace overture::clients {

class FlagParser {
 public:
  FlagParser(std::string command, std::string summary)
      : command_(std::move(command)), summary_(std::move(summary)) {}

  // Where a value goes; what it holds now is the default that Help() shows.
  using Target = std::variant<std::string*, int32_t*, int64_t*, double*, bool*>;
  void Add(std::string name, Target target, std::string help);

  // INVALID_ARGUMENT naming the flag for one that is unknown, lacks its value,
  // has a malformed one or is given twice, and for anything that is no flag.
  absl::Status Parse(absl::Span<const std::string> args);

  // True after --help; then nothing else was checked.
  bool help_requested() const { return help_requested_; }
  bool Given(absl::string_view name) const;
  std::string Help() const;

 private:
  struct Flag {
    std::string name;
    Target target;
    std::string help;
    std::string default_text;
    bool given = false;
  };
  Flag* Find(absl::string_view name);

  std::string command_;
  std::string summary_;
  std::vector<Flag> flags_;
  bool help_requested_ = false;
};

}  // namespace overture::clients
