// overture-inspect: a page of what a prompt's heads do.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "clients/inspect/page.h"
#include "clients/model_tool/local_model.h"
#include "clients/tool/common_flags.h"
#include "clients/tool/flags.h"
#include "clients/tool/progress_bar.h"
#include "clients/tool/request_text.h"
#include "clients/tool/write_file.h"
#include "engine/attention_profile.h"
#include "engine/calibration_file.h"
#include "engine/passive_waits.h"
#include "proto/selector_text.h"
#include "service/convert.h"

namespace overture::clients {
namespace {

struct Options {
  ModelFlags model;
  PromptFlags prompt;
  std::string selector = "vertical_slash";
  std::string head_sizes;
  std::string out = "inspect.html";
};

absl::StatusOr<engine::SelectorSpec> ReadSelector(const Options& options,
                                                  const LocalModel& model) {
  const engine::ModelConfig& config = model.files().config();
  engine::HeadSizes head_sizes;
  if (!options.head_sizes.empty()) {
    OVERTURE_ASSIGN_OR_RETURN(
        head_sizes, engine::LoadHeadSizes(options.head_sizes, model.files()));
  }
  OVERTURE_ASSIGN_OR_RETURN(const v1::Selector selector,
                            v1::ParseSelector(options.selector));
  OVERTURE_ASSIGN_OR_RETURN(
      engine::SelectorSpec spec,
      service::SelectorFromProto(selector, {}, head_sizes));
  OVERTURE_RETURN_IF_ERROR(engine::Validate(spec, config));
  OVERTURE_RETURN_IF_ERROR(model.backend().Supports(spec));
  return spec;
}

std::string PromptName(const PromptFlags& flags) {
  if (!flags.file.empty()) return flags.file;
  const std::string& text = flags.text.empty() ? flags.tokens : flags.text;
  return text.size() > 60 ? absl::StrCat(text.substr(0, 60), "...") : text;
}

absl::Status Run(const Options& options, const FlagParser& flags) {
  OVERTURE_RETURN_IF_ERROR(WithContext(CheckWritable(options.out), "--out"));
  OVERTURE_ASSIGN_OR_RETURN(const PromptFlags::Prompt prompt,
                            options.prompt.Read(flags));
  OVERTURE_ASSIGN_OR_RETURN(const LocalModel model,
                            LocalModel::Load(options.model));
  OVERTURE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                            model.Tokens(prompt));
  OVERTURE_ASSIGN_OR_RETURN(const engine::SelectorSpec selector,
                            ReadSelector(options, model));

  const engine::ModelConfig& config = model.backend().config();
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  engine::AttentionProfiler profiler(config, model.backend().kv_layout(),
                                     num_tokens);
  engine::PrefillOutput output;
  {
    ProgressBar bar("inspect", stderr);
    ProgressIo io([&](int32_t layers) {
      bar.Update(static_cast<double>(layers) / config.num_layers,
                 absl::StrCat("layer ", layers, " of ", config.num_layers));
    });
    OVERTURE_ASSIGN_OR_RETURN(
        output, model.backend().Prefill({.tokens = tokens,
                                         .selector = selector,
                                         .audit_rows = engine::kMaxAuditRows,
                                         .observer = &profiler,
                                         .io = &io}));
  }
  OVERTURE_RETURN_IF_ERROR(profiler.status());
  const PageTitle title = {.model = config.name,
                           .prompt = PromptName(options.prompt),
                           .policy = engine::PolicyText(selector),
                           .backend = model.backend().device_name(),
                           .num_tokens = num_tokens};
  OVERTURE_RETURN_IF_ERROR(
      WriteFile(options.out, InspectPage(title, config, output, profiler)));
  const engine::KeptMassSummary kept = engine::Summarize(output.audit);
  absl::PrintF(
      "%d tokens, %s\ndensity %.4f, kept mass %.4f, lowest %.4f in layer %d "
      "head %d\nwrote %s\n",
      num_tokens, title.policy, output.density, kept.mean, kept.lowest,
      kept.layer, kept.head, options.out);
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& args) {
  Options options;
  FlagParser flags(
      "overture inspect",
      "Prefills a prompt in this process and writes a page of HTML: where "
      "each\n"
      "head looks, at what density, and how much of its attention it kept.");
  options.model.AddTo(flags);
  options.prompt.AddTo(flags);
  flags.Add("selector", &options.selector,
            "As of overture prefill, for instance vertical_slash:1000,6096.");
  flags.Add("head-sizes", &options.head_sizes,
            "File of overture calibrate, or MInference's pattern file, for "
            "vertical_slash:per_head.");
  flags.Add("out", &options.out, "The page.");
  bool done = false;
  absl::Status status = ParseOrHelp(flags, args, &done);
  if (status.ok() && !done) status = Run(options, flags);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "overture inspect: %s\n", status.ToString());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace overture::clients

int main(int argc, char** argv) {
  overture::engine::WaitPassively(argv);
  return overture::clients::Main(
      std::vector<std::string>(argv + 1, argv + argc));
}
