// overture: the command-line client.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "clients/tool/child_process.h"
#include "clients/tool/commands.h"

namespace overture::clients {
namespace {

// These run a model, which this program does not know how to do.
absl::Status RunDecode(CommandArgs args) {
  return BecomeSiblingProgram("overture-decode", args);
}
absl::Status RunEvaluate(CommandArgs args) {
  return BecomeSiblingProgram("overture-evaluate", args);
}

absl::Status RunCalibrate(CommandArgs args) {
  return BecomeSiblingProgram("overture-calibrate", args);
}
absl::Status RunInspect(CommandArgs args) {
  return BecomeSiblingProgram("overture-inspect", args);
}

constexpr Command kCommands[] = {
    {"prefill", "turn a prompt into KV and print its handle", RunPrefill},
    {"decode", "answer from the KV of a handle (runs overture-decode)",
     RunDecode},
    {"chat", "a conversation at the terminal", RunChat},
    {"lookup", "how much of a prompt is stored", RunLookup},
    {"describe", "what a handle holds", RunDescribe},
    {"release", "drop handles", RunRelease},
    {"sessions", "list, create or delete sessions", RunSessions},
    {"evaluate", "score selectors and views (runs overture-evaluate)",
     RunEvaluate},
    {"inspect", "draw what a prompt's heads do (runs overture-inspect)",
     RunInspect},
    {"calibrate", "search what each head should keep (runs overture-calibrate)",
     RunCalibrate},
    {"info", "what the server runs and holds", RunInfo},
};

void PrintUsage(std::FILE* out) {
  std::fputs("overture COMMAND [flags]; overture COMMAND --help\n\n", out);
  for (const Command& command : Commands()) {
    absl::FPrintF(out, "  %-9s %s\n", std::string(command.name),
                  std::string(command.summary));
  }
}

// 0: done; 1: the call failed; 2: the command line is wrong or the server found
// the request malformed.
int Main(const std::vector<std::string>& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h" ||
      args[0] == "help") {
    PrintUsage(args.empty() ? stderr : stdout);
    return args.empty() ? 2 : 0;
  }
  for (const Command& command : Commands()) {
    if (command.name != args[0]) continue;
    const absl::Status status =
        command.run(absl::MakeConstSpan(args).subspan(1));
    if (status.ok()) return 0;
    absl::FPrintF(stderr, "overture %s: %s\n", args[0], status.ToString());
    return absl::IsInvalidArgument(status) ? 2 : 1;
  }
  absl::FPrintF(stderr, "overture: unknown command '%s'\n", args[0]);
  PrintUsage(stderr);
  return 2;
}

}  // namespace

absl::Span<const Command> Commands() { return kCommands; }

}  // namespace overture::clients

int main(int argc, char** argv) {
  return overture::clients::Main(
      std::vector<std::string>(argv + 1, argv + argc));
}
