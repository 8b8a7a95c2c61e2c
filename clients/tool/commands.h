// The subcommands of `overture`, one function each: parses its own flags,
// prints its answer on standard output (a line of JSON with --json), returns
// why it failed. INVALID_ARGUMENT from a flag, or what the server answered.
// One thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace overture::clients {

using CommandArgs = absl::Span<const std::string>;

absl::Status RunPrefill(CommandArgs args);
absl::Status RunLookup(CommandArgs args);
absl::Status RunDescribe(CommandArgs args);
absl::Status RunRelease(CommandArgs args);
absl::Status RunSessions(CommandArgs args);
absl::Status RunInfo(CommandArgs args);
absl::Status RunChat(CommandArgs args);

struct Command {
  absl::string_view name;
  absl::string_view summary;
  absl::Status (*run)(CommandArgs);
};
absl::Span<const Command> Commands();

}  // namespace overture::clients
