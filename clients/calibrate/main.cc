// overture-calibrate: what each head of a model should keep.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "clients/model_tool/local_model.h"
#include "clients/tool/common_flags.h"
#include "clients/tool/flags.h"
#include "clients/tool/progress_bar.h"
#include "clients/tool/request_text.h"
#include "clients/tool/write_file.h"
#include "engine/calibration_file.h"
#include "engine/head_search.h"
#include "engine/minference_config.h"
#include "engine/passive_waits.h"
#include "engine/selector_spec.h"

namespace overture::clients {
namespace {

struct Options {
  ModelFlags model;
  std::string samples;
  std::string tokens;
  double density = 0.1;
  int32_t rows = 32;
  int32_t seed = 1;
  bool adaptive = false;
  std::string out = "calibration.json";
  std::string minference_out;
};

struct Sample {
  std::string name;
  std::vector<int32_t> tokens;
};

absl::StatusOr<std::vector<Sample>> ReadSamples(const Options& options,
                                                const LocalModel& model) {
  std::vector<Sample> samples;
  for (const absl::string_view path :
       absl::StrSplit(options.samples, ';', absl::SkipEmpty())) {
    PromptFlags::Prompt prompt{.is_text = true};
    OVERTURE_ASSIGN_OR_RETURN(prompt.text, ReadTextFile(std::string(path)));
    OVERTURE_ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                              model.Tokens(prompt));
    samples.push_back({std::string(path), std::move(tokens)});
  }
  for (const absl::string_view list :
       absl::StrSplit(options.tokens, ';', absl::SkipEmpty())) {
    PromptFlags::Prompt prompt;
    OVERTURE_ASSIGN_OR_RETURN(prompt.ids, ParseTokens(list));
    OVERTURE_ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                              model.Tokens(prompt));
    samples.push_back({list[0] == '@' ? std::string(list.substr(1)) : "tokens",
                       std::move(tokens)});
  }
  if (samples.empty()) {
    return absl::InvalidArgumentError("--samples or --tokens is needed");
  }
  return samples;
}

Sha256Digest DigestOf(const std::vector<int32_t>& tokens) {
  Sha256 sha;
  for (const int32_t token : tokens) {
    const auto id = static_cast<uint32_t>(token);
    const char bytes[4] = {static_cast<char>(id), static_cast<char>(id >> 8),
                           static_cast<char>(id >> 16),
                           static_cast<char>(id >> 24)};
    sha.Update(bytes, sizeof(bytes));
  }
  return sha.Digest();
}

// One dense prefill of each sample.
absl::Status RunSearch(const LocalModel& model,
                       const std::vector<Sample>& samples,
                       engine::HeadSearch* search) {
  const int32_t num_layers = model.backend().config().num_layers;
  const absl::Time begin = absl::Now();
  int64_t all = 0;
  int64_t before = 0;
  for (const Sample& sample : samples) {
    all += static_cast<int64_t>(sample.tokens.size());
  }
  ProgressBar bar("calibrate", stderr);
  for (const Sample& sample : samples) {
    const auto tokens = static_cast<int64_t>(sample.tokens.size());
    ProgressIo io([&](int32_t layers) {
      const double done = (static_cast<double>(before) +
                           static_cast<double>(tokens) * layers / num_layers) /
                          static_cast<double>(all);
      const double passed = absl::ToDoubleSeconds(absl::Now() - begin);
      bar.Update(
          done,
          absl::StrCat(sample.name, ", layer ", layers, " of ", num_layers,
                       ", ", FormatSeconds(passed / done - passed), " left"));
    });
    engine::RowObserver* observer = search->BeginSample(tokens);
    OVERTURE_RETURN_IF_ERROR(
        model.backend()
            .Prefill({.tokens = sample.tokens, .observer = observer, .io = &io})
            .status());
    OVERTURE_RETURN_IF_ERROR(search->status());
    before += tokens;
  }
  return absl::OkStatus();
}

// [layers * heads][candidates].
using Scores = std::vector<std::vector<engine::CandidateScore>>;
using Candidates = std::vector<engine::HeadSearch::Size>;

Scores AllScores(const engine::ModelConfig& config,
                 const engine::HeadSearch& search) {
  Scores scores;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (int32_t head = 0; head < config.num_q_heads; ++head) {
      scores.push_back(search.Scores(layer, head));
    }
  }
  return scores;
}

absl::StatusOr<engine::Calibration> MakeCalibration(
    const Options& options, const LocalModel& model,
    const std::vector<Sample>& samples, const Candidates& candidates,
    const Scores& scores, const std::vector<int32_t>& chosen) {
  const engine::ModelConfig& config = model.backend().config();
  engine::Calibration out = {
      .model = config.name,
      .weights_digest = model.files().weights_digest(),
      .seed = static_cast<uint32_t>(options.seed),
      .rows = options.rows,
      .density = options.density,
      .segment_tokens = engine::SelectorSpec().segment_tokens};
  for (const Sample& sample : samples) {
    out.samples.push_back({sample.name, DigestOf(sample.tokens),
                           static_cast<int64_t>(sample.tokens.size())});
  }
  engine::HeadSizes::Table table(config.num_layers);
  out.scores.resize(config.num_layers);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const size_t layer = i / config.num_q_heads;
    table[layer].push_back(candidates[chosen[i]]);
    out.scores[layer].push_back(scores[i][chosen[i]]);
  }
  OVERTURE_ASSIGN_OR_RETURN(out.sizes,
                            engine::HeadSizes::Create(std::move(table)));
  return out;
}

void Print(const std::string& what, const engine::CandidateScore& mean) {
  absl::PrintF("%-28s density %.4f, kept mass %.4f, output error %.4f\n", what,
               mean.density, mean.recall, mean.error);
}

// What was reached, beside the best that one size for all heads does with as
// much.
void Report(const Candidates& candidates, const Scores& scores,
            const std::vector<int32_t>& chosen) {
  const engine::CandidateScore reached = engine::MeanOf(scores, chosen);
  Print(absl::StrCat(scores.size(), " heads, each its own"), reached);
  std::string name;
  engine::CandidateScore best;
  for (size_t c = 0; c < candidates.size(); ++c) {
    const engine::CandidateScore score = engine::MeanOf(
        scores, std::vector<int32_t>(scores.size(), static_cast<int32_t>(c)));
    // Sums of equal densities may differ in their last bits.
    if (score.density > reached.density + 1e-9) continue;
    if (!name.empty() && score.error >= best.error) continue;
    name = absl::StrCat("best of one size, ", candidates[c].vertical, ",",
                        candidates[c].slash);
    best = score;
  }
  if (!name.empty()) Print(name, best);
}

absl::Status Run(const Options& options) {
  if (!(options.density > 0 && options.density <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--density is ", options.density, ", must be within (0, 1]"));
  }
  if (options.seed < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--seed is ", options.seed, ", must be at least 0"));
  }
  OVERTURE_RETURN_IF_ERROR(WithContext(CheckWritable(options.out), "--out"));
  if (!options.minference_out.empty()) {
    OVERTURE_RETURN_IF_ERROR(
        WithContext(CheckWritable(options.minference_out), "--minference-out"));
  }
  OVERTURE_ASSIGN_OR_RETURN(const LocalModel model,
                            LocalModel::Load(options.model));
  OVERTURE_ASSIGN_OR_RETURN(const std::vector<Sample> samples,
                            ReadSamples(options, model));
  Candidates candidates = engine::DefaultCandidates();
  if (options.adaptive) {
    const Candidates adaptive = engine::AdaptiveCandidates();
    candidates.insert(candidates.end(), adaptive.begin(), adaptive.end());
  }
  const engine::HeadSearch::Options searched = {
      .candidates = candidates,
      .rows = options.rows,
      .seed = static_cast<uint32_t>(options.seed),
      .segments =
          engine::SegmentsOf({.kind = engine::SelectorSpec::Kind::kDynamic})};
  OVERTURE_ASSIGN_OR_RETURN(
      const std::unique_ptr<engine::HeadSearch> search,
      engine::HeadSearch::Create(model.backend().config(),
                                 model.backend().kv_layout(), searched));
  OVERTURE_RETURN_IF_ERROR(RunSearch(model, samples, search.get()));
  const Scores scores = AllScores(model.backend().config(), *search);
  const std::vector<int32_t> chosen =
      engine::ChooseCandidates(scores, options.density);
  OVERTURE_ASSIGN_OR_RETURN(
      const engine::Calibration calibration,
      MakeCalibration(options, model, samples, candidates, scores, chosen));
  OVERTURE_RETURN_IF_ERROR(
      WriteFile(options.out, engine::CalibrationJson(calibration)));
  Report(candidates, scores, chosen);
  absl::PrintF("wrote %s\n", options.out);
  if (options.minference_out.empty()) return absl::OkStatus();
  std::vector<std::vector<double>> recalls;
  for (const auto& layer : calibration.scores) {
    recalls.emplace_back();
    for (const auto& score : layer) recalls.back().push_back(score.recall);
  }
  OVERTURE_ASSIGN_OR_RETURN(
      const std::string json,
      engine::MInferenceConfigJson(calibration.sizes, recalls));
  OVERTURE_RETURN_IF_ERROR(WriteFile(options.minference_out, json));
  absl::PrintF("wrote %s\n", options.minference_out);
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& args) {
  Options options;
  FlagParser flags(
      "overture calibrate",
      "Prefills sample prompts densely in this process and searches, for "
      "every\n"
      "head, what to keep: the least error of its attention output at a given\n"
      "mean density. The file serves vertical_slash:per_head.");
  options.model.AddTo(flags);
  flags.Add("samples", &options.samples,
            "Text files, separated by ';': what the model will be asked.");
  flags.Add("tokens", &options.tokens,
            "Token ids in place of texts, 1,2,3 or @FILE, separated by ';'.");
  flags.Add(
      "density", &options.density,
      "Share of dense attention's key tiles to compute, mean over heads.");
  flags.Add(
      "rows", &options.rows,
      "Rows of each sample that are measured, at most 64: half spread, half "
      "the last ones, where its question should stand.");
  flags.Add("seed", &options.seed, "Of where these rows are.");
  flags.Add(
      "adaptive", &options.adaptive,
      "Try sizes that depend on the prompt as well: the fewest columns and "
      "distances that hold a mass. A MInference file has none.");
  flags.Add("out", &options.out, "The calibration.");
  flags.Add("minference-out", &options.minference_out,
            "The same sizes as a pattern file of MInference's.");
  bool done = false;
  absl::Status status = ParseOrHelp(flags, args, &done);
  if (status.ok() && !done) status = Run(options);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "overture calibrate: %s\n", status.ToString());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace overture::clients

int main(int argc, char** argv) {
  overture::engine::WaitPassively(argv);
  return overture::clients::Main(
      std::vector<std::string>(argv + 1, argv + argc));
}
