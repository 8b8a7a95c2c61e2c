// One prefill after another on one back end, without cache or service:
//
//   prefill_bench --model PATH [--tokens 4096] [--selector dense]
//                 [--device cpu] [--compute auto] [--repeat 3] [--decode 0]
//
// Tokens are drawn at random from the vocabulary, so speed is real but density
// of a selector is that of noise; --tokens_file takes ids, one a line.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/backend.h"
#include "engine/create_backend.h"
#include "engine/decoder.h"
#include "engine/minference_config.h"
#include "engine/model_files.h"
#include "engine/passive_waits.h"

ABSL_FLAG(std::string, model, "", "GGUF file or Hugging Face folder");
ABSL_FLAG(std::vector<std::string>, tokens, {"4096"},
          "lengths of the prompt, one after the other: 8192,32768");
ABSL_FLAG(std::string, tokens_file, "", "ids, one a line; the first --tokens");
ABSL_FLAG(std::string, selector, "dense", "dense, a_shape or vertical_slash");
ABSL_FLAG(int32_t, vertical, 1000, "columns per head, vertical_slash");
ABSL_FLAG(int32_t, slash, 6096, "distances per head, vertical_slash");
ABSL_FLAG(std::string, minference_config, "",
          "pattern file of the model: sizes per head, vertical_slash");
ABSL_FLAG(int64_t, segment, 16384, "segment length, vertical_slash");
ABSL_FLAG(std::string, device, "cpu", "auto, cpu or cuda");
ABSL_FLAG(std::string, compute, "auto", "auto, bf16 or f32");
ABSL_FLAG(int32_t, repeat, 3, "prefills; the best one counts");
ABSL_FLAG(int64_t, decode, 0, "tokens to decode afterwards");

namespace overture::engine {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
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

absl::StatusOr<SelectorSpec> SelectorFromFlags(const ModelConfig& config) {
  const std::string text = absl::GetFlag(FLAGS_selector);
  SelectorSpec spec;
  spec.segment_tokens = absl::GetFlag(FLAGS_segment);
  spec.vertical_slash = {.vertical = absl::GetFlag(FLAGS_vertical),
                         .slash = absl::GetFlag(FLAGS_slash)};
  if (text == "a_shape") {
    spec.kind = SelectorSpec::Kind::kAShape;
  } else if (text == "vertical_slash") {
    spec.kind = SelectorSpec::Kind::kVerticalSlash;
  } else if (text != "dense") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--selector is ", text, ", must be dense, a_shape or vertical_slash"));
  }
  if (const std::string path = absl::GetFlag(FLAGS_minference_config);
      !path.empty()) {
    if (spec.kind != SelectorSpec::Kind::kVerticalSlash) {
      return absl::InvalidArgumentError(
          "--minference_config goes with --selector vertical_slash");
    }
    OVERTURE_ASSIGN_OR_RETURN(
        spec.head_sizes,
        LoadMInferenceConfig(path, config.num_layers, config.num_q_heads));
  }
  return spec;
}

absl::StatusOr<std::vector<int64_t>> LengthsFromFlag() {
  std::vector<int64_t> lengths;
  for (const std::string& text : absl::GetFlag(FLAGS_tokens)) {
    int64_t length = 0;
    if (!absl::SimpleAtoi(text, &length) || length < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tokens has ", text, ", must be positive numbers"));
    }
    lengths.push_back(length);
  }
  return lengths;
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

struct Setting {
  SelectorSpec selector;
  ComputeDType dtype = ComputeDType::kAuto;
};

absl::Status RunLength(const ModelFiles& files, Backend& backend,
                       const Setting& setting, int64_t length) {
  OVERTURE_ASSIGN_OR_RETURN(
      const std::vector<int32_t> tokens,
      PromptFromFlags(length, backend.config().vocab_size));
  const int64_t num_decode = absl::GetFlag(FLAGS_decode);
  std::shared_ptr<const DecoderModel> decoder_model;
  std::unique_ptr<Decoder> decoder;
  if (num_decode > 0) {
    OVERTURE_ASSIGN_OR_RETURN(decoder_model,
                              DecoderModel::Create(files, setting.dtype));
    OVERTURE_ASSIGN_OR_RETURN(decoder,
                              Decoder::Create(decoder_model, tokens.size()));
  }

  std::printf("%8s %9s %9s %8s %8s %8s %8s %8s %9s\n", "tokens", "seconds",
              "tokens/s", "linear", "attend", "select", "other", "density",
              "peak MiB");
  double best = 0;
  std::vector<float> logits;
  const int32_t repeat = absl::GetFlag(FLAGS_repeat);
  for (int32_t i = 0; i < repeat; ++i) {
    BenchIo io(i + 1 == repeat ? decoder.get() : nullptr, backend.kv_layout());
    const Clock::time_point begin = Clock::now();
    OVERTURE_ASSIGN_OR_RETURN(
        const PrefillOutput output,
        backend.Prefill(
            {.tokens = tokens, .selector = setting.selector, .io = &io}));
    const double seconds = SecondsSince(begin);
    OVERTURE_RETURN_IF_ERROR(io.status);
    best = i == 0 ? seconds : std::min(best, seconds);
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    std::printf("%8zu %9.3f %9.1f %8.3f %8.3f %8.3f %8.3f %8.4f %9.1f\n",
                tokens.size(), seconds, tokens.size() / seconds,
                output.linear_seconds, output.attention_seconds,
                output.selector_seconds,
                seconds - output.linear_seconds - output.attention_seconds -
                    output.selector_seconds,
                output.density, usage.ru_maxrss / 1024.0);
    logits = output.logits;
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

absl::Status Run() {
  Setting setting;
  OVERTURE_ASSIGN_OR_RETURN(setting.dtype, ComputeFromFlag());
  OVERTURE_ASSIGN_OR_RETURN(const DeviceChoice device,
                            ParseDeviceChoice(absl::GetFlag(FLAGS_device)));
  OVERTURE_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths,
                            LengthsFromFlag());
  const Clock::time_point load_begin = Clock::now();
  OVERTURE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFiles> files,
                            LoadModelFiles(absl::GetFlag(FLAGS_model)));
  OVERTURE_ASSIGN_OR_RETURN(setting.selector,
                            SelectorFromFlags(files->config()));
  OVERTURE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend,
                            CreateBackend(*files, device, setting.dtype));
  std::printf("%s on %s, loaded in %.2f s\n", backend->numerics().c_str(),
              backend->device_name().c_str(), SecondsSince(load_begin));
  for (const int64_t length : lengths) {
    OVERTURE_RETURN_IF_ERROR(RunLength(*files, *backend, setting, length));
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
