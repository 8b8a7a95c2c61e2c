// One prefill after another on one back end, without cache or service:
//
//   prefill_bench --model PATH [--tokens 4096] [--selector dense]
//                 [--device cpu] [--compute auto] [--linears bf16] [--attention
//                 bf16]
//                 [--repeat 3] [--decode 0]
//
// Tokens are drawn at random from the vocabulary, so speed is real but density
// of a selector is that of noise; --tokens_file takes ids, one a line. One
// loading of the model can serve unlike prefills: --runs lists them as
// SELECTOR[/SEGMENT]@TOKENS and --json takes every row's numbers.
//
//   prefill_bench --model PATH --device cuda --tokens_file prompt.txt
//                 --minference_config heads.json
//                 --runs dense@8192,vertical_slash/65536@1048576 --json OUT
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "engine/backend.h"
#include "engine/create_backend.h"
#include "engine/decoder.h"
#include "engine/minference_config.h"
#include "engine/model_files.h"
#include "engine/passive_waits.h"
#ifdef OVERTURE_HAVE_CUDA
#include "base/cuda/device.h"
#endif

ABSL_FLAG(std::string, model, "", "GGUF file or Hugging Face folder");
ABSL_FLAG(std::vector<std::string>, tokens, {"4096"},
          "lengths of the prompt, one after the other: 8192,32768");
ABSL_FLAG(std::vector<std::string>, runs, {},
          "SELECTOR[/SEGMENT]@TOKENS, instead of --selector, --tokens");
ABSL_FLAG(std::string, json, "", "file for the numbers of every prefill");
ABSL_FLAG(std::string, tokens_file, "", "ids, one a line; the first --tokens");
ABSL_FLAG(std::string, selector, "dense", "dense, a_shape or vertical_slash");
ABSL_FLAG(int32_t, vertical, 1000, "columns per head, vertical_slash");
ABSL_FLAG(int32_t, slash, 6096, "distances per head, vertical_slash");
ABSL_FLAG(std::string, minference_config, "",
          "pattern file of the model: sizes per head, vertical_slash");
ABSL_FLAG(int64_t, segment, 16384, "segment length, vertical_slash");
ABSL_FLAG(std::string, device, "cpu", "auto, cpu or cuda");
ABSL_FLAG(std::string, compute, "auto", "auto, bf16 or f32");
ABSL_FLAG(std::string, linears, "bf16", "bf16 (of --compute) or fp8");
ABSL_FLAG(std::string, attention, "bf16", "bf16 (of --compute) or fp8");
ABSL_FLAG(int32_t, audit_rows, 8,
          "rows of a layer whose kept mass is measured");
ABSL_FLAG(int32_t, repeat, 3, "prefills; the best one counts");
ABSL_FLAG(int64_t, decode, 0, "tokens to decode afterwards");

namespace overture::engine {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Of the whole device, all processes; 0 without one.
int64_t DeviceBytesInUse() {
#ifdef OVERTURE_HAVE_CUDA
  const absl::StatusOr<DeviceMemory> memory = GetDeviceMemory();
  if (memory.ok()) return memory->total_bytes - memory->free_bytes;
#endif
  return 0;
}

// Drops the KV, or keeps it for decoding.
class BenchIo final : public PrefillIo {
 public:
  explicit BenchIo(Decoder* decoder, const KvLayout& layout)
      : decoder_(decoder), layout_(layout) {}
  absl::Status ReadPrefix(int32_t, const MutableLayerKvView&) override {
    return absl::InternalError("no prefix here");
  }
  void LayerDone(int32_t layer, const LayerKvView& kv) override {
    device_bytes = std::max(device_bytes, DeviceBytesInUse());
    if (decoder_ == nullptr) return;
    for (int32_t h = 0; h < layout_.num_kv_heads; ++h) {
      const int64_t bytes = layout_.HeadBytes(kv.num_rows);
      const int64_t offset = h * kv.head_stride_bytes;
      status.Update(decoder_->AppendRows(layer, h, layout_.dtype,
                                         {kv.k + offset, size_t(bytes)},
                                         {kv.v + offset, size_t(bytes)}));
    }
  }
  absl::Status status;
  int64_t device_bytes = 0;

 private:
  Decoder* const decoder_;
  const KvLayout layout_;
};

absl::StatusOr<ComputeDType> ComputeFromFlag() {
  const std::string text = absl::GetFlag(FLAGS_compute);
  if (text == "auto") return ComputeDType::kAuto;
  if (text == "bf16") return ComputeDType::kBF16;
  if (text == "f32") return ComputeDType::kF32;
  return absl::InvalidArgumentError(
      absl::StrCat("--compute is ", text, ", must be auto, bf16 or f32"));
}

// `name` is as --selector has it.
absl::StatusOr<SelectorSpec> SelectorByName(absl::string_view name,
                                            const ModelConfig& config) {
  SelectorSpec spec;
  spec.segment_tokens = absl::GetFlag(FLAGS_segment);
  if (name == "dense") return spec;
  if (name == "a_shape") {
    spec.kind = SelectorSpec::Kind::kAShape;
    return spec;
  }
  if (name != "vertical_slash") {
    return absl::InvalidArgumentError(
        absl::StrCat("the selector is ", name,
                     ", must be dense, a_shape or vertical_slash"));
  }
  spec.kind = SelectorSpec::Kind::kDynamic;
  spec.vertical_slash = {.vertical = absl::GetFlag(FLAGS_vertical),
                         .slash = absl::GetFlag(FLAGS_slash)};
  if (const std::string path = absl::GetFlag(FLAGS_minference_config);
      !path.empty()) {
    OVERTURE_ASSIGN_OR_RETURN(
        spec.head_sizes,
        LoadMInferenceConfig(path, config.num_layers, config.num_q_heads));
  }
  return spec;
}

absl::StatusOr<int64_t> PositiveNumber(absl::string_view text,
                                       absl::string_view what) {
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 1) return number;
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is '", text, "', must be a positive number"));
}

struct Setting {
  std::string name;  // of the selector
  SelectorSpec selector;
  int64_t num_tokens = 0;
};

// SELECTOR[/SEGMENT]@TOKENS.
absl::StatusOr<Setting> ParseSetting(absl::string_view text,
                                     const ModelConfig& config) {
  const std::pair<absl::string_view, absl::string_view> at =
      absl::StrSplit(text, absl::MaxSplits('@', 1));
  const std::vector<absl::string_view> parts = absl::StrSplit(at.first, '/');
  Setting setting{.name = std::string(parts[0])};
  OVERTURE_ASSIGN_OR_RETURN(setting.num_tokens,
                            PositiveNumber(at.second, "tokens of a run"));
  OVERTURE_ASSIGN_OR_RETURN(setting.selector,
                            SelectorByName(setting.name, config));
  if (parts.size() > 1) {
    OVERTURE_ASSIGN_OR_RETURN(setting.selector.segment_tokens,
                              PositiveNumber(parts[1], "segment of a run"));
  }
  OVERTURE_RETURN_IF_ERROR(Validate(setting.selector));
  return setting;
}

absl::StatusOr<std::vector<Setting>> SettingsFromFlags(
    const ModelConfig& config) {
  std::vector<std::string> texts = absl::GetFlag(FLAGS_runs);
  if (texts.empty()) {
    for (const std::string& tokens : absl::GetFlag(FLAGS_tokens)) {
      texts.push_back(absl::StrCat(absl::GetFlag(FLAGS_selector), "@", tokens));
    }
  }
  std::vector<Setting> settings;
  for (const std::string& text : texts) {
    OVERTURE_ASSIGN_OR_RETURN(settings.emplace_back(),
                              ParseSetting(text, config));
  }
  return settings;
}

absl::StatusOr<std::vector<int32_t>> PromptFromFlags(int64_t count,
                                                     int64_t vocab_size) {
  std::vector<int32_t> tokens;
  const std::string path = absl::GetFlag(FLAGS_tokens_file);
  if (!path.empty()) {
    std::ifstream file(path);
    int32_t token;
    while (static_cast<int64_t>(tokens.size()) < count && file >> token) {
      tokens.push_back(token);
    }
    if (static_cast<int64_t>(tokens.size()) < count) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, " has ", tokens.size(), " ids, ", count, " are asked for"));
    }
    return tokens;
  }
  std::mt19937 random(1);
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(random() % vocab_size));
  }
  return tokens;
}

// Of one prefill; seconds of wall time, the phases those of the device.
struct Row {
  double seconds = 0;
  PrefillOutput output;
  int64_t device_bytes = 0;  // in use at the fullest layer's end; 0: no device

  double other_seconds() const {
    return seconds - output.linear_seconds - output.attention_seconds -
           output.selector_seconds - output.audit_seconds;
  }
};

void AppendJson(const Setting& setting, const Row& row, std::string* json) {
  const auto& vs = setting.selector.vertical_slash;
  const bool per_head = !setting.selector.head_sizes.empty();
  absl::StrAppend(json, json->empty() ? "" : ",\n", R"(  {"selector": ")",
                  setting.name, R"(", "tokens": )", setting.num_tokens);
  if (setting.selector.kind == SelectorSpec::Kind::kDynamic) {
    absl::StrAppend(
        json, R"(, "segment": )", setting.selector.segment_tokens,
        R"(, "sizes": ")",
        per_head ? "per head" : absl::StrCat(vs.vertical, " ", vs.slash), "\"");
  }
  absl::StrAppend(json, R"(, "seconds": )", row.seconds, R"(, "linear": )",
                  row.output.linear_seconds, R"(, "attention": )",
                  row.output.attention_seconds, R"(, "selector_seconds": )",
                  row.output.selector_seconds, R"(, "audit_seconds": )",
                  row.output.audit_seconds, R"(, "kept_mass": )",
                  Summarize(row.output.audit).mean, R"(, "other": )",
                  row.other_seconds(), R"(, "density": )", row.output.density,
                  R"(, "layer_density": [)",
                  absl::StrJoin(row.output.layer_density, ", "),
                  R"(], "device_bytes": )", row.device_bytes, "}");
}

// Allocates what a service keeps from one prefill to the next, page-locked
// memory above all, and loads kernels: a prefill that is stopped after its
// first layer.
absl::Status WarmUp(Backend& backend, const Setting& setting,
                    absl::Span<const int32_t> tokens) {
  class StoppingIo final : public PrefillIo {
   public:
    absl::Status ReadPrefix(int32_t, const MutableLayerKvView&) override {
      return absl::InternalError("no prefix here");
    }
    void LayerDone(int32_t, const LayerKvView&) override {
      source.request_stop();
    }
    std::stop_source source;
  };
  StoppingIo io;
  const absl::Status status =
      backend
          .Prefill({.tokens = tokens,
                    .selector = setting.selector,
                    .audit_rows = absl::GetFlag(FLAGS_audit_rows),
                    .io = &io,
                    .stop = io.source.get_token()})
          .status();
  return absl::IsCancelled(status) ? absl::OkStatus() : status;
}

absl::Status RunSetting(const ModelFiles& files, Backend& backend,
                        const Setting& setting, ComputeDType dtype,
                        std::string* json) {
  OVERTURE_ASSIGN_OR_RETURN(
      const std::vector<int32_t> tokens,
      PromptFromFlags(setting.num_tokens, backend.config().vocab_size));
  const int64_t num_decode = absl::GetFlag(FLAGS_decode);
  std::shared_ptr<const DecoderModel> decoder_model;
  std::unique_ptr<Decoder> decoder;
  if (num_decode > 0) {
    OVERTURE_ASSIGN_OR_RETURN(decoder_model,
                              DecoderModel::Create(files, dtype));
    OVERTURE_ASSIGN_OR_RETURN(decoder,
                              Decoder::Create(decoder_model, tokens.size()));
  }

  std::printf("%14s %8s %9s %9s %8s %8s %8s %8s %8s %8s %8s %9s %9s\n",
              setting.name.c_str(), "tokens", "seconds", "tokens/s", "linear",
              "attend", "select", "audit", "other", "density", "kept",
              "host MiB", "GPU MiB");
  OVERTURE_RETURN_IF_ERROR(WarmUp(backend, setting, tokens));
  double best = 0;
  std::vector<float> logits;
  const int32_t repeat = absl::GetFlag(FLAGS_repeat);
  for (int32_t i = 0; i < repeat; ++i) {
    BenchIo io(i + 1 == repeat ? decoder.get() : nullptr, backend.kv_layout());
    Row row;
    const Clock::time_point begin = Clock::now();
    OVERTURE_ASSIGN_OR_RETURN(
        row.output,
        backend.Prefill({.tokens = tokens,
                         .selector = setting.selector,
                         .audit_rows = absl::GetFlag(FLAGS_audit_rows),
                         .io = &io}));
    row.seconds = SecondsSince(begin);
    row.device_bytes = io.device_bytes;
    OVERTURE_RETURN_IF_ERROR(io.status);
    best = i == 0 ? row.seconds : std::min(best, row.seconds);
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    std::printf(
        "%14s %8zu %9.3f %9.1f %8.3f %8.3f %8.3f %8.4f %8.3f %8.4f %8.4f %9.1f "
        "%9.1f\n",
        "", tokens.size(), row.seconds, tokens.size() / row.seconds,
        row.output.linear_seconds, row.output.attention_seconds,
        row.output.selector_seconds, row.output.audit_seconds,
        row.other_seconds(), row.output.density,
        Summarize(row.output.audit).mean, usage.ru_maxrss / 1024.0,
        row.device_bytes / 1048576.0);
    AppendJson(setting, row, json);
    logits = row.output.logits;
  }
  std::printf("best %.1f tokens/s\n", tokens.size() / best);
  std::fflush(stdout);
  if (num_decode > 0) {
    int32_t token = Argmax(logits);
    const Clock::time_point begin = Clock::now();
    for (int64_t i = 0; i < num_decode; ++i) {
      OVERTURE_ASSIGN_OR_RETURN(const absl::Span<const float> next,
                                decoder->Step(token));
      token = Argmax(next);
    }
    std::printf("decode %.1f tokens/s over %zu rows\n",
                num_decode / SecondsSince(begin), tokens.size());
  }
  return absl::OkStatus();
}

absl::Status WriteJson(const Backend& backend, const std::string& rows) {
  const std::string path = absl::GetFlag(FLAGS_json);
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path);
  file << R"({"model": ")" << backend.config().name << R"(", "device": ")"
       << backend.device_name() << R"(", "numerics": ")" << backend.numerics()
       << "\", \"rows\": [\n"
       << rows << "\n]}\n";
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat("--json ", path, ": write failed"));
}

absl::Status Run() {
  OVERTURE_ASSIGN_OR_RETURN(const ComputeDType dtype, ComputeFromFlag());
  OVERTURE_ASSIGN_OR_RETURN(const DeviceChoice device,
                            ParseDeviceChoice(absl::GetFlag(FLAGS_device)));
  OVERTURE_ASSIGN_OR_RETURN(const LinearPrecision linears,
                            ParseLinearPrecision(absl::GetFlag(FLAGS_linears)));
  OVERTURE_ASSIGN_OR_RETURN(
      const AttentionPrecision attention,
      ParseAttentionPrecision(absl::GetFlag(FLAGS_attention)));
  const Clock::time_point load_begin = Clock::now();
  OVERTURE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFiles> files,
                            LoadModelFiles(absl::GetFlag(FLAGS_model)));
  OVERTURE_ASSIGN_OR_RETURN(const std::vector<Setting> settings,
                            SettingsFromFlags(files->config()));
  OVERTURE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Backend> backend,
      CreateBackend(*files, device, dtype, linears, attention));
  std::printf("%s on %s, loaded in %.2f s\n", backend->numerics().c_str(),
              backend->device_name().c_str(), SecondsSince(load_begin));
  std::string json;
  for (const Setting& setting : settings) {
    OVERTURE_RETURN_IF_ERROR(
        RunSetting(*files, *backend, setting, dtype, &json));
    // After each, so that a run that is cut short leaves what it has.
    OVERTURE_RETURN_IF_ERROR(WriteJson(*backend, json));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace overture::engine

int main(int argc, char** argv) {
  overture::engine::WaitPassively(argv);
  absl::SetProgramUsageMessage("times prefills on one back end");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = overture::engine::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
