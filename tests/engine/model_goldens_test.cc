// The default model against Transformers on the same dequantised weights:
// tests/goldens/make_model_goldens.py says how the goldens were made.
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "engine/decoder.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/default_model.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::RecordedPrefill;
using ::overture::testing::RunPrefill;

constexpr int kNumPrompts = 10;
constexpr int64_t kStride = 16;  // of strided_logits

// Loaded once per compute dtype and process: it takes seconds.
class Model {
 public:
  static const Model& Get(ComputeDType dtype) {
    static const Model f32(ComputeDType::kF32);
    if (dtype == ComputeDType::kF32) return f32;
    static const Model bf16(ComputeDType::kBF16);
    return bf16;
  }
  Backend& backend() const { return *backend_; }
  const std::shared_ptr<const DecoderModel>& decoder() const {
    return decoder_;
  }

 private:
  explicit Model(ComputeDType dtype) {
    auto files = LoadModelFiles(::overture::testing::DefaultModelPath());
    EXPECT_THAT(files, ::overture::testing::IsOk());
    backend_ = *CreateCpuBackend(**files, dtype);
    if (dtype == ComputeDType::kF32) {
      decoder_ = *DecoderModel::Create(**files, dtype);
    }
  }
  std::unique_ptr<Backend> backend_;
  std::shared_ptr<const DecoderModel> decoder_;
};

nlohmann::json ReadGolden(int index) {
  std::ifstream file("tests/goldens/smollm2_135m.json");
  return nlohmann::json::parse(file)["prompts"][index];
}

struct Errors {
  double max = 0;
  double rms = 0;
};

// Over the logits that the golden holds.
Errors ErrorsOf(absl::Span<const float> logits, const nlohmann::json& golden) {
  Errors errors;
  const auto add = [&](double logit, double expected) {
    errors.max = std::fmax(errors.max, std::abs(logit - expected));
    return (logit - expected) * (logit - expected);
  };
  for (size_t i = 0; i < golden["top_ids"].size(); ++i) {
    add(logits[golden["top_ids"][i]], golden["top_logits"][i]);
  }
  double squares = 0;
  const size_t count = golden["strided_logits"].size();
  for (size_t i = 0; i < count; ++i) {
    squares += add(logits[i * kStride], golden["strided_logits"][i]);
  }
  errors.rms = std::sqrt(squares / static_cast<double>(count));
  return errors;
}

class ModelGoldensTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (::overture::testing::DefaultModelPath().empty()) {
      GTEST_SKIP() << ::overture::testing::kNoDefaultModel;
    }
    golden_ = ReadGolden(GetParam());
    tokens_ = golden_["tokens"].get<std::vector<int32_t>>();
  }
  double Reference(const char* dtype, const char* kind) const {
    return golden_["reference_error"][dtype][kind].get<double>();
  }

  nlohmann::json golden_;
  std::vector<int32_t> tokens_;
};

std::string NameOf(const ::testing::TestParamInfo<int>& info) {
  static constexpr const char* kNames[kNumPrompts] = {
      "OneToken",     "FiveTokens", "ChatCapital", "ChatList", "BlockLessOne",
      "BlockPlusOne", "Odd700",     "Odd1800",     "Even4096", "Long7000"};
  return kNames[info.param];
}

TEST_P(ModelGoldensTest, F32LogitsAndGreedyTokensEqualTransformers) {
  const Model& model = Model::Get(ComputeDType::kF32);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill run,
                                RunPrefill(model.backend(), tokens_));

  // The golden is float64. A product sums up to 1,536 terms one after another,
  // which is off by 2^-24 * sqrt(1536) / 2 = 1.2e-6 rms of its result; 120 of
  // them in a row make sqrt(120) * 1.2e-6 = 1.3e-5 of the logits' rms. Four of
  // that cover the largest of 3,136 logits. (Transformers in float32 sums a
  // single row in another order and is closer there; with the products of that
  // model summed one after another it is as far off as we are, 9e-5.)
  const Errors errors = ErrorsOf(run.output.logits, golden_);
  const double tolerance = 4 * 1.3e-5 * golden_["rms"].get<double>();
  EXPECT_LT(errors.max, tolerance);
  std::printf("max error %.2e of %.2e allowed; Transformers float32 %.2e\n",
              errors.max, tolerance, Reference("f32", "max"));

  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const auto decoder,
      Decoder::Create(model.decoder(), static_cast<int64_t>(tokens_.size())));
  const KvLayout& layout = run.kv.layout;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    const int64_t bytes = layout.HeadBytes(run.kv.num_rows);
    const std::byte* k = run.kv.layers[layer].data();
    const std::byte* v = k + layout.num_kv_heads * bytes;
    for (int32_t h = 0; h < layout.num_kv_heads; ++h) {
      OVERTURE_ASSERT_OK(decoder->AppendRows(
          layer, h, layout.dtype, absl::MakeConstSpan(k + h * bytes, bytes),
          absl::MakeConstSpan(v + h * bytes, bytes)));
    }
  }
  absl::Span<const float> logits = run.output.logits;
  const auto greedy = golden_["greedy"].get<std::vector<int32_t>>();
  ASSERT_EQ(greedy.size(), 64u);
  for (size_t i = 0; i < greedy.size(); ++i) {
    // No step of the reference is closer than two errors of this size.
    ASSERT_GT(golden_["margins"][i].get<double>(), 2 * tolerance) << i;
    ASSERT_EQ(Argmax(logits), greedy[i]) << "step " << i;
    if (i + 1 == greedy.size()) break;
    OVERTURE_ASSERT_OK_AND_ASSIGN(logits, decoder->Step(greedy[i]));
  }
}

TEST_P(ModelGoldensTest, Bf16LogitsAreAtLeastAsCloseAsTransformers) {
  const Model& model = Model::Get(ComputeDType::kBF16);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill run,
                                RunPrefill(model.backend(), tokens_));
  // Both round weights and activations to bf16; Transformers rounds the
  // residual stream too, where we keep fp32. So its error, which the golden
  // records, bounds ours, up to the luck of one draw against another.
  const Errors errors = ErrorsOf(run.output.logits, golden_);
  const double tolerance = 1.5 * Reference("bf16", "rms");
  EXPECT_LT(errors.rms, tolerance);
  std::printf("rms error %.3f; Transformers bfloat16 %.3f; logits %.1f\n",
              errors.rms, Reference("bf16", "rms"),
              golden_["rms"].get<double>());
}

INSTANTIATE_TEST_SUITE_P(Prompts, ModelGoldensTest,
                         ::testing::Range(0, kNumPrompts), NameOf);

}  // namespace
}  // namespace overture::engine
