// overture-evaluate: scores selectors and views (docs/evaluation.md).
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "clients/cpp/client.h"
#include "clients/decode_worker/decode_worker.h"
#include "clients/evaluate/grid.h"
#include "clients/evaluate/plots.h"
#include "clients/evaluate/real_text.h"
#include "clients/evaluate/record.h"
#include "clients/evaluate/runner.h"
#include "clients/evaluate/summary.h"
#include "clients/evaluate/tasks.h"
#include "clients/tool/child_process.h"
#include "clients/tool/flags.h"
#include "clients/tool/progress_bar.h"
#include "clients/tool/server_process.h"
#include "clients/tool/write_file.h"
#include "engine/passive_waits.h"
#include "nlohmann/json.hpp"

namespace overture::clients {
namespace {

constexpr int32_t kMaxParallel = 256;

struct Options {
  GridFlags grid;
  std::string model;
  std::string server;
  std::string noise_server;
  std::string out;
  std::string prompts;
  std::string spelling = "auto";
  std::string text =
      "/usr/share/common-licenses;/usr/share/cmake-3.25/Help/manual";
  int32_t parallel = 1;
};

// What samples are made from.
struct Source {
  Spelling spelling;
  TokenizeText tokenize;
  std::optional<RealText> text;  // where the grid asks for it
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

absl::StatusOr<Source> MakeSource(const Options& options,
                                  const engine::Tokenizer& tokenizer,
                                  Grid& grid) {
  OVERTURE_ASSIGN_OR_RETURN(const Spelling spelling,
                            ChooseSpelling(options.spelling, tokenizer));
  Source source{.spelling = spelling, .tokenize = TokenizeWith(tokenizer)};
  for (SampleId& id : grid.samples) {
    if (id.task != kRealText) continue;
    if (!source.text.has_value()) {
      OVERTURE_ASSIGN_OR_RETURN(source.text,
                                RealText::Load(options.text, source.tokenize));
    }
    id.task = source.text->task();
  }
  return source;
}

absl::StatusOr<Sample> MakeSample(const SampleId& id, int num_turns,
                                  const Source& source) {
  if (source.text.has_value() && id.task == source.text->task()) {
    return source.text->MakeSample(id);
  }
  return MakeSample(id, num_turns, source.spelling, source.tokenize);
}

struct Servers {
  std::unique_ptr<OvertureClient> client;
  std::unique_ptr<OvertureClient> own_noise;  // null: `client` is it
  OvertureClient& noise() const { return own_noise ? *own_noise : *client; }
};

// A server must run the model that decodes: its KV means nothing to another.
absl::Status CheckModel(const RecordHeader& server,
                        const DecodeWorker& worker) {
  const std::string weights = worker.files().weights_digest().Hex();
  const std::string tokenizer = worker.tokenizer()->digest().Hex();
  if (server.weights_digest == weights &&
      server.tokenizer_digest == tokenizer) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the server runs weights ", server.weights_digest, " and tokenizer ",
      server.tokenizer_digest, ", --model has ", weights, " and ", tokenizer));
}

absl::StatusOr<RecordHeader> MakeHeader(const Servers& servers,
                                        const DecodeWorker& worker,
                                        Spelling spelling) {
  RecordHeader header = HeaderOf(servers.client->server(), spelling);
  OVERTURE_RETURN_IF_ERROR(CheckModel(header, worker));
  if (servers.own_noise != nullptr) {
    const RecordHeader noise = HeaderOf(servers.noise().server(), spelling);
    OVERTURE_RETURN_IF_ERROR(CheckModel(noise, worker));
    header.noise_server = absl::StrCat(noise.backend, ", ", noise.numerics);
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

// Samples that are worked off side by side.
class Work {
 public:
  Work(std::vector<SampleId> samples, size_t total)
      : samples_(std::move(samples)) {
    for (const SampleId& sample : samples_) {
      all_ += static_cast<double>(sample.length);
    }
    absl::FPrintF(stderr, "%d samples, %d of them complete\n", total,
                  total - samples_.size());
  }

  // Null when there is no more, or one has failed.
  const SampleId* Next() {
    const absl::MutexLock lock(&mutex_);
    return next_ < samples_.size() && status_.ok() ? &samples_[next_++]
                                                   : nullptr;
  }
  void Done(const SampleId& sample, const absl::Status& status) {
    const absl::MutexLock lock(&mutex_);
    status_.Update(status);
    // Tokens to prefill are what takes the time.
    done_ += static_cast<double>(sample.length);
    ++num_done_;
    const absl::Duration left =
        (absl::Now() - start_) * ((all_ - done_) / done_);
    bar_.Update(done_ / all_,
                absl::StrFormat(
                    "%d of %d, %s left, %s", num_done_, samples_.size(),
                    absl::FormatDuration(absl::Trunc(left, absl::Seconds(1))),
                    ToString(sample)));
  }
  absl::Status status() const {
    const absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  const std::vector<SampleId> samples_;
  const absl::Time start_ = absl::Now();
  double all_ = 0;

  mutable absl::Mutex mutex_;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_done_ ABSL_GUARDED_BY(mutex_) = 0;
  double done_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  ProgressBar bar_ ABSL_GUARDED_BY(mutex_){"evaluate", stderr};
};

absl::Status RunGrid(const Grid& grid, const Servers& servers,
                     const DecodeWorker& worker, const Source& source,
                     int num_threads, RecordFile& file) {
  std::vector<SampleId> missing;
  for (const SampleId& sample : grid.samples) {
    if (!IsComplete(grid, sample, file)) missing.push_back(sample);
  }
  Work work(std::move(missing), grid.samples.size());
  // The threads that a decoder's step may use are a setting of each thread.
  const int step_threads = omp_get_max_threads();
  const auto work_off = [&] {
    omp_set_num_threads(step_threads);
    Runner runner(*servers.client, servers.noise(), worker, source.spelling);
    while (const SampleId* id = work.Next()) {
      absl::StatusOr<Sample> sample = MakeSample(*id, grid.turns, source);
      work.Done(
          *id, sample.ok() ? runner.Run(grid, *sample, file) : sample.status());
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) threads.emplace_back(work_off);
  for (std::thread& thread : threads) thread.join();
  return work.status();
}

// What another implementation needs to answer the same questions.
absl::Status WritePrompts(const Grid& grid, const Source& source,
                          const std::string& path) {
  std::string lines;
  for (const SampleId& id : grid.samples) {
    OVERTURE_ASSIGN_OR_RETURN(const Sample sample,
                              MakeSample(id, grid.turns, source));
    for (int turn = 0; turn < grid.turns; ++turn) {
      const Turn& asked = sample.turns[static_cast<size_t>(turn)];
      const nlohmann::json line = {
          {"sample", ToString(id)},
          {"task", id.task},
          {"turn", turn},
          {"prompt", PromptOfTurn(sample, grid.mode, kLast, turn).prefill},
          {"gold", asked.gold},
          {"parts", asked.parts},
          {"any_order", asked.any_order},
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
  if (!options.noise_server.empty() && !options.grid.noise_floor) {
    return absl::InvalidArgumentError("--noise-server needs --noise-floor");
  }
  if (options.parallel < 1 || options.parallel > kMaxParallel) {
    return absl::InvalidArgumentError(
        absl::StrCat("--parallel is ", options.parallel,
                     ", must be within [1, ", kMaxParallel, "]"));
  }
  OVERTURE_ASSIGN_OR_RETURN(Grid grid, ParseGrid(options.grid));
  // Before the weights are packed: for as many threads as will share them.
  omp_set_num_threads(std::max(1, omp_get_max_threads() / options.parallel));
  OVERTURE_ASSIGN_OR_RETURN(
      const auto worker,
      DecodeWorker::Load(options.model, engine::ComputeDType::kAuto));
  if (worker->tokenizer() == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.model, " has no tokenizer"));
  }
  OVERTURE_ASSIGN_OR_RETURN(const Source source,
                            MakeSource(options, *worker->tokenizer(), grid));
  if (!options.prompts.empty()) {
    return WritePrompts(grid, source, options.prompts);
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
  Servers servers;
  OVERTURE_ASSIGN_OR_RETURN(servers.client, OvertureClient::Connect(address));
  if (!options.noise_server.empty()) {
    OVERTURE_ASSIGN_OR_RETURN(servers.own_noise,
                              OvertureClient::Connect(options.noise_server));
  }
  OVERTURE_ASSIGN_OR_RETURN(const RecordHeader header,
                            MakeHeader(servers, *worker, source.spelling));
  OVERTURE_ASSIGN_OR_RETURN(const auto file,
                            RecordFile::Open(std::move(locked), header));
  OVERTURE_RETURN_IF_ERROR(
      RunGrid(grid, servers, *worker, source, options.parallel, *file));

  const std::vector<Record> records = file->records();
  const std::string summary =
      SummaryMarkdown(absl::StrCat(servers.client->server().model().name(),
                                   ", ", header.backend, ", ", header.numerics),
                      records);
  std::vector<Record> answers;
  std::copy_if(records.begin(), records.end(), std::back_inserter(answers),
               [](const Record& r) { return !r.likelihood.has_value(); });
  const std::pair<const char*, std::string> outputs[] = {
      {"summary.md", summary},
      {"heat.svg", HeatMapSvg(answers)},
      {"density.svg", AccuracySvg(answers, CostAxis::kDensity)},
      {"bytes.svg", AccuracySvg(answers, CostAxis::kKvBytes)},
      {"turns.svg", TurnsSvg(answers)},
  };
  for (const auto& [name, text] : outputs) {
    if (text.empty()) continue;
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
  flags.Add("mode", &grid.mode,
            "single, multi_turn, multi_request or stored_view.");
  flags.Add("turns", &grid.turns, "Questions on one context.");
  flags.Add("noise-floor", &grid.noise_floor, "Run dense over full KV twice.");
  flags.Add("noise-server", &options.noise_server,
            "Address of a server of the same weights, say on another device, "
            "for the second time; needs --noise-floor.");
  flags.Add("text", &options.text,
            "Files, or folders of them, for --tasks=text: read in place.");
  flags.Add("parallel", &options.parallel,
            "Samples at a time: they share the decoder's threads.");
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
