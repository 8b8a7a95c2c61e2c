// What another precision or device changes in a model's answers: the same
// tokens through two back ends, logits and next-token distributions compared
// position by position. The first has bf16 linear layers and attention; the
// second is like it but for the flags that say otherwise.
//
//   precision_accuracy --linears fp8 --attention fp8 --model PATH --text FILE
//                      [--context 512] [--answer 64] [--limit 16]
//                      [--device cpu] [--compute auto]
//   precision_accuracy --device cpu --second_device cuda
//                      [--selector vertical_slash] --model PATH --text FILE ...
//   precision_accuracy ... --model PATH --cases FILE ...
//
// --text takes windows of `context` + `answer` tokens one after the other and
// scores the answers. --cases has a case a line: ids of a prompt, a bar, ids of
// its answer. Teacher-forced: every answer token is one prefill of one new row
// over the KV of those before it.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/backend.h"
#include "engine/create_backend.h"
#include "engine/decoder.h"
#include "engine/model_files.h"
#include "engine/passive_waits.h"
#include "engine/tokenizer.h"

ABSL_FLAG(std::string, model, "", "GGUF file or Hugging Face folder");
ABSL_FLAG(std::string, text, "", "a text to predict");
ABSL_FLAG(std::string, cases, "", "prompts and answers as ids");
ABSL_FLAG(int64_t, context, 512, "tokens before the first that is scored");
ABSL_FLAG(int64_t, answer, 64, "tokens that are scored of each window");
ABSL_FLAG(int64_t, limit, 16, "windows or cases");
ABSL_FLAG(std::string, device, "cpu", "auto, cpu or cuda");
ABSL_FLAG(std::string, compute, "auto", "auto, bf16 or f32");
ABSL_FLAG(std::string, second_device, "", "of the second; --device if empty");
ABSL_FLAG(std::string, second_compute, "", "of the second; --compute if empty");
ABSL_FLAG(std::string, selector, "dense",
          "dense or vertical_slash, of prompts; answers see all tokens");
ABSL_FLAG(int32_t, vertical, 1000, "columns per head, vertical_slash");
ABSL_FLAG(int32_t, slash, 6096, "distances per head, vertical_slash");
ABSL_FLAG(int64_t, segment, 16384, "segment length, vertical_slash");
ABSL_FLAG(std::string, linears, "bf16", "bf16 or fp8, of the second back end");
ABSL_FLAG(std::string, attention, "bf16", "as --linears");

namespace overture::engine {
namespace {

struct Case {
  std::vector<int32_t> tokens;  // prompt and answer
  int64_t prompt = 0;           // tokens of it
};

// Keeps the KV of all rows, as LayerKvView lays it out.
class KvKeeper final : public PrefillIo {
 public:
  explicit KvKeeper(const KvLayout& layout)
      : layout_(layout), layers_(layout.num_layers) {}

  absl::Status ReadPrefix(int32_t layer,
                          const MutableLayerKvView& dst) override {
    const int64_t bytes = layout_.HeadBytes(num_rows_);
    for (int32_t head = 0; head < layout_.num_kv_heads; ++head) {
      const std::byte* k = layers_[layer].data() + 2 * head * bytes;
      const int64_t offset = head * dst.head_stride_bytes;
      std::memcpy(dst.k + offset, k, layout_.HeadBytes(dst.num_rows));
      std::memcpy(dst.v + offset, k + bytes, layout_.HeadBytes(dst.num_rows));
    }
    return absl::OkStatus();
  }

  void LayerDone(int32_t layer, const LayerKvView& kv) override {
    const int64_t bytes = layout_.HeadBytes(kv.num_rows);
    std::vector<std::byte> rows(2 * layout_.num_kv_heads * bytes);
    for (int32_t head = 0; head < layout_.num_kv_heads; ++head) {
      std::byte* k = rows.data() + 2 * head * bytes;
      const int64_t offset = head * kv.head_stride_bytes;
      std::memcpy(k, kv.k + offset, bytes);
      std::memcpy(k + bytes, kv.v + offset, bytes);
    }
    layers_[layer] = std::move(rows);
    if (layer + 1 == layout_.num_layers) num_rows_ = kv.num_rows;
  }

 private:
  const KvLayout layout_;
  std::vector<std::vector<std::byte>> layers_;  // [head][K, V][row][head_dim]
  int64_t num_rows_ = 0;
};

// Logits before each token of the answer.
absl::StatusOr<std::vector<std::vector<float>>> Score(
    Backend& backend, const SelectorSpec& selector, const Case& c) {
  KvKeeper kv(backend.kv_layout());
  std::vector<std::vector<float>> logits;
  const auto n = static_cast<int64_t>(c.tokens.size());
  for (int64_t end = c.prompt; end < n; ++end) {
    const bool first = end == c.prompt;
    OVERTURE_ASSIGN_OR_RETURN(
        PrefillOutput output,
        backend.Prefill({.tokens = absl::MakeConstSpan(c.tokens).first(end),
                         .num_cached = first ? 0 : end - 1,
                         .selector = first ? selector : SelectorSpec{},
                         .io = &kv}));
    logits.push_back(std::move(output.logits));
  }
  return logits;
}

std::vector<double> LogSoftmax(const std::vector<float>& logits) {
  const double top = logits[Argmax(logits)];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  std::vector<double> result;
  for (const float logit : logits) {
    result.push_back(logit - top - std::log(sum));
  }
  return result;
}

struct Totals {
  int64_t positions = 0;
  int64_t same_top = 0;
  double divergence = 0;
  double worst = 0;
  double largest_difference = 0;  // of two logits
  double square_difference = 0;   // mean over a position's logits, summed
  double loss[2] = {};            // first, second
  int64_t right[2] = {};          // answers whose every token is the likeliest
};

void Add(const Case& c, const std::vector<std::vector<float>> (&logits)[2],
         Totals* totals) {
  bool right[2] = {true, true};
  for (size_t i = 0; i < logits[0].size(); ++i) {
    const int32_t token = c.tokens[c.prompt + i];
    const std::vector<double> p[2] = {LogSoftmax(logits[0][i]),
                                      LogSoftmax(logits[1][i])};
    double divergence = 0, squares = 0;
    for (size_t t = 0; t < p[0].size(); ++t) {
      divergence += std::exp(p[0][t]) * (p[0][t] - p[1][t]);
      const double difference = double{logits[0][i][t]} - logits[1][i][t];
      squares += difference * difference;
      // A NaN is larger than all.
      if (!(std::abs(difference) <= totals->largest_difference)) {
        totals->largest_difference = std::abs(difference);
      }
    }
    totals->square_difference += squares / static_cast<double>(p[0].size());
    totals->divergence += divergence;
    totals->worst = std::max(totals->worst, divergence);
    const int32_t top[2] = {Argmax(logits[0][i]), Argmax(logits[1][i])};
    totals->same_top += top[0] == top[1];
    for (int b = 0; b < 2; ++b) {
      totals->loss[b] -= p[b][token];
      right[b] = right[b] && top[b] == token;
    }
    ++totals->positions;
  }
  for (int b = 0; b < 2; ++b) totals->right[b] += right[b];
}

absl::StatusOr<std::vector<Case>> CasesFromFlags() {
  const auto limit = static_cast<size_t>(absl::GetFlag(FLAGS_limit));
  const std::string path = absl::GetFlag(FLAGS_cases);
  std::vector<Case> cases;
  if (!path.empty()) {
    std::ifstream file(path);
    std::string line;
    while (cases.size() < limit && std::getline(file, line)) {
      Case c;
      std::istringstream words(line);
      std::string word;
      while (words >> word) {
        if (word == "|") {
          c.prompt = static_cast<int64_t>(c.tokens.size());
        } else {
          c.tokens.push_back(std::stoi(word));
        }
      }
      cases.push_back(std::move(c));
    }
    return cases;
  }
  std::ifstream file(absl::GetFlag(FLAGS_text));
  std::stringstream text;
  text << file.rdbuf();
  OVERTURE_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                            Tokenizer::Load(absl::GetFlag(FLAGS_model)));
  const std::vector<int32_t> ids = tokenizer->Encode(text.str(), {});
  const int64_t context = absl::GetFlag(FLAGS_context);
  const int64_t window = context + absl::GetFlag(FLAGS_answer);
  for (size_t i = 0; i + window <= ids.size() && cases.size() < limit;
       i += window) {
    cases.push_back({{ids.begin() + i, ids.begin() + i + window}, context});
  }
  return cases;
}

absl::StatusOr<ComputeDType> ParseCompute(const std::string& text) {
  if (text == "auto") return ComputeDType::kAuto;
  if (text == "bf16") return ComputeDType::kBF16;
  if (text == "f32") return ComputeDType::kF32;
  return absl::InvalidArgumentError(
      absl::StrCat("--compute is ", text, ", must be auto, bf16 or f32"));
}

absl::StatusOr<SelectorSpec> SelectorFromFlags() {
  SelectorSpec spec;
  const std::string name = absl::GetFlag(FLAGS_selector);
  if (name == "vertical_slash") {
    spec.kind = SelectorSpec::Kind::kDynamic;
    spec.vertical_slash = {.vertical = absl::GetFlag(FLAGS_vertical),
                           .slash = absl::GetFlag(FLAGS_slash)};
    spec.segment_tokens = absl::GetFlag(FLAGS_segment);
  } else if (name != "dense") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--selector is ", name, ", must be dense or vertical_slash"));
  }
  OVERTURE_RETURN_IF_ERROR(Validate(spec));
  return spec;
}

// The first or the second, b = 0 or 1.
absl::StatusOr<std::unique_ptr<Backend>> BackendFromFlags(
    const ModelFiles& files, int b) {
  std::string device = absl::GetFlag(FLAGS_device);
  std::string compute = absl::GetFlag(FLAGS_compute);
  LinearPrecision linears = LinearPrecision::kBF16;
  AttentionPrecision attention = AttentionPrecision::kBF16;
  if (b == 1) {
    const std::string second_device = absl::GetFlag(FLAGS_second_device);
    if (!second_device.empty()) device = second_device;
    const std::string second_compute = absl::GetFlag(FLAGS_second_compute);
    if (!second_compute.empty()) compute = second_compute;
    OVERTURE_ASSIGN_OR_RETURN(
        linears, ParseLinearPrecision(absl::GetFlag(FLAGS_linears)));
    OVERTURE_ASSIGN_OR_RETURN(
        attention, ParseAttentionPrecision(absl::GetFlag(FLAGS_attention)));
  }
  OVERTURE_ASSIGN_OR_RETURN(const DeviceChoice choice,
                            ParseDeviceChoice(device));
  OVERTURE_ASSIGN_OR_RETURN(const ComputeDType dtype, ParseCompute(compute));
  return CreateBackend(files, choice, dtype, linears, attention);
}

absl::Status Run() {
  OVERTURE_ASSIGN_OR_RETURN(const SelectorSpec selector, SelectorFromFlags());
  OVERTURE_ASSIGN_OR_RETURN(const std::vector<Case> cases, CasesFromFlags());
  if (cases.empty()) {
    return absl::InvalidArgumentError("--text and --cases hold no case");
  }
  OVERTURE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFiles> files,
                            LoadModelFiles(absl::GetFlag(FLAGS_model)));
  std::unique_ptr<Backend> backends[2];
  for (int b = 0; b < 2; ++b) {
    OVERTURE_ASSIGN_OR_RETURN(backends[b], BackendFromFlags(*files, b));
    std::printf("%s: %s on %s\n", b == 0 ? "first" : "second",
                backends[b]->numerics().c_str(),
                backends[b]->device_name().c_str());
  }
  Totals totals;
  for (const Case& c : cases) {
    std::vector<std::vector<float>> logits[2];
    for (int b = 0; b < 2; ++b) {
      OVERTURE_ASSIGN_OR_RETURN(logits[b], Score(*backends[b], selector, c));
    }
    Add(c, logits, &totals);
  }
  const auto n = static_cast<double>(totals.positions);
  std::printf(
      "%zu cases, %lld positions: perplexity %.4f first, %.4f second; KL %.5f "
      "mean, %.4f worst; same top token %.2f%%; logits differ by %.4f rms, "
      "%.4f at most; answers right %lld first, %lld second\n",
      cases.size(), static_cast<long long>(totals.positions),
      std::exp(totals.loss[0] / n), std::exp(totals.loss[1] / n),
      totals.divergence / n, totals.worst,
      100.0 * static_cast<double>(totals.same_top) / n,
      std::sqrt(totals.square_difference / n), totals.largest_difference,
      static_cast<long long>(totals.right[0]),
      static_cast<long long>(totals.right[1]));
  return absl::OkStatus();
}

}  // namespace
}  // namespace overture::engine

int main(int argc, char** argv) {
  overture::engine::WaitPassively(argv);
  absl::SetProgramUsageMessage("compares what two back ends answer");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = overture::engine::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
