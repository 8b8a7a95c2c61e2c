// overture-evaluate: scores selectors and views (docs/evaluation.md).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "clients/cpp/client.h"
#include "clients/decode_worker/decode_worker.h"
#include "clients/evaluate/grid.h"
#include "clients/evaluate/plots.h"
#include "clients/evaluate/record.h"
#include "clients/evaluate/runner.h"
#include "clients/evaluate/summary.h"
#include "clients/evaluate/tasks.h"
#include "clients/evaluate/write_file.h"
#include "clients/tool/child_process.h"
#include "clients/tool/flags.h"
#include "clients/tool/progress_bar.h"
#include "clients/tool/server_process.h"
#include "engine/passive_waits.h"
#include "nlohmann/json.hpp"

namespace overture::clients {
namespace {

struct Options {
  GridFlags grid;
  std::string model;
  std::string server;
  std::string out;
  std::string prompts;
  std::string spelling = "auto";
};

TokenizeText TokenizeWith(const engine::Tokenizer& tokenizer) {
  return [&tokenizer](
             absl::string_view text) -> absl::StatusOr<std::vector<int32_t>> {
    // Nothing here comes from a user: "<bos>" in a wording means the token.
    return tokenizer.Encode(text, {});
  };
}

absl::StatusOr<Spelling> ChooseSpelling(const std::string& flag,
                                        const engine::Tokenizer& tokenizer) {
  if (flag == "words") return Spelling::kWords;
  if (flag == "text") return Spelling::kText;
  if (flag != "auto") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--spelling is '", flag, "', must be auto, words or text"));
  }
  // The retrieval model's vocabulary has these as tokens, others as letters.
  return tokenizer.Encode("<bos> <nl> <d7>", {}).size() == 3 ? Spelling::kWords
                                                             : Spelling::kText;
}

// The server must run the model that decodes: its KV means nothing to another.
absl::StatusOr<RecordHeader> MakeHeader(const v1::ServerInfo& server,
                                        const DecodeWorker& worker,
                                        Spelling spelling) {
  const RecordHeader header = HeaderOf(server, spelling);
  if (header.weights_digest != worker.files().weights_digest().Hex() ||
      header.tokenizer_digest != worker.tokenizer()->digest().Hex()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the server runs ", server.model().name(), " with weights ",
        header.weights_digest, " and tokenizer ", header.tokenizer_digest,
        ", --model has ", worker.files().weights_digest().Hex(), " and ",
        worker.tokenizer()->digest().Hex()));
  }
  return header;
}

bool IsComplete(const Grid& grid, const SampleId& sample,
                const RecordFile& file) {
  for (int turn = 0; turn < grid.turns; ++turn) {
    for (const Configuration& configuration : grid.configurations) {
      if (!file.Has({.sample = sample,
                     .mode = grid.mode,
                     .turn = turn,
                     .configuration = configuration})) {
        return false;
      }
    }
  }
  return true;
}

absl::Status RunGrid(const Grid& grid, OvertureClient& client,
                     const DecodeWorker& worker, Spelling spelling,
                     RecordFile& file) {
  std::vector<SampleId> missing;
  double work = 0;  // tokens to prefill: what takes the time
  for (const SampleId& sample : grid.samples) {
    if (IsComplete(grid, sample, file)) continue;
    missing.push_back(sample);
    work += static_cast<double>(sample.length);
  }
  absl::FPrintF(stderr, "%d samples, %d of them complete, %d configurations\n",
                grid.samples.size(), grid.samples.size() - missing.size(),
                grid.configurations.size());
  ProgressBar bar("evaluate", stderr);
  const absl::Time start = absl::Now();
  Runner runner(client, worker, spelling);
  double done = 0;
  for (size_t i = 0; i < missing.size(); ++i) {
    const std::string left =
        done == 0 ? "measuring"
                  : absl::FormatDuration(absl::Seconds(absl::ToInt64Seconds(
                        (absl::Now() - start) * ((work - done) / done)))) +
                        " left";
    bar.Update(done / work,
               absl::StrFormat("%d of %d, %s, %s", i + 1, missing.size(), left,
                               ToString(missing[i])));
    OVERTURE_ASSIGN_OR_RETURN(const Sample sample,
                              MakeSample(missing[i], grid.turns, spelling,
                                         TokenizeWith(*worker.tokenizer())));
    OVERTURE_RETURN_IF_ERROR(runner.Run(grid, sample, file));
    done += static_cast<double>(missing[i].length);
  }
  return absl::OkStatus();
}

// What another implementation needs to answer the same questions.
absl::Status WritePrompts(const Grid& grid, Spelling spelling,
                          const engine::Tokenizer& tokenizer,
                          const std::string& path) {
  std::string lines;
  for (const SampleId& id : grid.samples) {
    OVERTURE_ASSIGN_OR_RETURN(
        const Sample sample,
        MakeSample(id, grid.turns, spelling, TokenizeWith(tokenizer)));
    for (int turn = 0; turn < grid.turns; ++turn) {
      const Turn& asked = sample.turns[static_cast<size_t>(turn)];
      const nlohmann::json line = {
          {"sample", ToString(id)},
          {"task", id.task},
          {"turn", turn},
          {"prompt", PromptOfTurn(sample, grid.mode, kLast, turn).prefill},
          {"gold", asked.gold},
          {"parts", asked.parts},
          {"max_tokens", asked.max_tokens}};
      absl::StrAppend(&lines, line.dump(-1, ' ', true), "\n");
    }
  }
  return WriteFile(path, lines);
}

absl::Status Run(const Options& options) {
  if (options.model.empty() || options.out.empty() == options.prompts.empty()) {
    return absl::InvalidArgumentError(
        "--model and one of --out and --prompts are needed");
  }
  OVERTURE_ASSIGN_OR_RETURN(const Grid grid, ParseGrid(options.grid));
  OVERTURE_ASSIGN_OR_RETURN(
      const auto worker,
      DecodeWorker::Load(options.model, engine::ComputeDType::kAuto));
  if (worker->tokenizer() == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.model, " has no tokenizer"));
  }
  OVERTURE_ASSIGN_OR_RETURN(
      const Spelling spelling,
      ChooseSpelling(options.spelling, *worker->tokenizer()));
  if (!options.prompts.empty()) {
    return WritePrompts(grid, spelling, *worker->tokenizer(), options.prompts);
  }

  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat("cannot make --out=", options.out));
  }
  // Before the server starts, which writes into this folder, too.
  OVERTURE_ASSIGN_OR_RETURN(
      LockedFile locked, LockFile(absl::StrCat(options.out, "/records.jsonl")));
  std::string address = options.server;
  ServerProcess own;
  if (address.empty()) {
    OVERTURE_ASSIGN_OR_RETURN(
        own, ServerProcess::Start({.program = SiblingProgram("overtured"),
                                   .model = options.model,
                                   .data_dir = options.out,
                                   .work_dir = options.out,
                                   .flags = {"--store=memory"}}));
    address = own.address();
  }
  OVERTURE_ASSIGN_OR_RETURN(const auto client,
                            OvertureClient::Connect(address));
  OVERTURE_ASSIGN_OR_RETURN(const RecordHeader header,
                            MakeHeader(client->server(), *worker, spelling));
  OVERTURE_ASSIGN_OR_RETURN(const auto file,
                            RecordFile::Open(std::move(locked), header));
  OVERTURE_RETURN_IF_ERROR(RunGrid(grid, *client, *worker, spelling, *file));

  const std::string summary =
      SummaryMarkdown(absl::StrCat(client->server().model().name(), ", ",
                                   header.backend, ", ", header.numerics),
                      file->records());
  const std::pair<const char*, std::string> outputs[] = {
      {"summary.md", summary},
      {"heat.svg", HeatMapSvg(file->records())},
      {"density.svg", AccuracySvg(file->records(), CostAxis::kDensity)},
      {"bytes.svg", AccuracySvg(file->records(), CostAxis::kKvBytes)},
  };
  for (const auto& [name, text] : outputs) {
    OVERTURE_RETURN_IF_ERROR(
        WriteFile(absl::StrCat(options.out, "/", name), text));
  }
  std::fputs(summary.c_str(), stdout);
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& args) {
  Options options;
  GridFlags& grid = options.grid;
  FlagParser flags(
      "overture evaluate",
      "Scores selectors and views on retrieval tasks, each sample against its\n"
      "answer over dense full KV. Lists are separated by ';'. The same "
      "command\n"
      "continues a run that was stopped. See docs/evaluation.md.");
  flags.Add("model", &options.model,
            "A .gguf file or Hugging Face folder: what the server runs. "
            "Needed.");
  flags.Add("server", &options.server,
            "Address of a running server; empty: one of our own.");
  flags.Add("out", &options.out,
            "Folder for records, tables and plots; made if absent.");
  flags.Add("prompts", &options.prompts,
            "Instead: a file for the prompts and gold answers; nothing runs.");
  flags.Add("tasks", &grid.tasks, "What is asked.");
  flags.Add("lengths", &grid.lengths, "Tokens of a prompt.");
  flags.Add("depths", &grid.depths, "Where the asked fact stands, 0 to 1.");
  flags.Add("seeds", &grid.seeds, "Samples for each task, length and depth.");
  flags.Add("first-seed", &grid.first_seed, "Of the seeds, which follow it.");
  flags.Add("selectors", &grid.selectors, "As for overture prefill.");
  flags.Add("views", &grid.views,
            "full, or as for overture prefill: what is decoded over.");
  flags.Add("questions", &grid.questions,
            "last: the prompt ends with it; hidden: the decoder feeds it to "
            "KV that has not seen it.");
  flags.Add("mode", &grid.mode, "single, multi_turn or multi_request.");
  flags.Add("turns", &grid.turns, "Questions on one context.");
  flags.Add("noise-floor", &grid.noise_floor, "Run dense over full KV twice.");
  flags.Add("spelling", &options.spelling,
            "words (the retrieval model's), text, or auto: by the tokenizer.");
  absl::Status status = flags.Parse(args);
  if (status.ok() && flags.help_requested()) {
    std::fputs(flags.Help().c_str(), stdout);
    return 0;
  }
  if (status.ok()) status = Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "overture evaluate: %s\n", status.ToString().c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace overture::clients

int main(int argc, char** argv) {
  overture::engine::WaitPassively(argv);
  return overture::clients::Main(
      std::vector<std::string>(argv + 1, argv + argc));
}
