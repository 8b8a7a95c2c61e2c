#include "bench/structured_model.h"

#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/backend.h"
#include "engine/minference_config.h"
#include "engine/model_files.h"
#include "engine/rope.h"
#include "gtest/gtest.h"
#include "kernels/selectors/vertical_slash.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::bench {
namespace {

using engine::ModelConfig;
using engine::ModelFiles;
using engine::TensorRole;
using ::overture::testing::RecordedPrefill;
using ::overture::testing::RunPrefill;
using ::overture::testing::StatusIs;
using ::overture::testing::TempDir;
using ::testing::HasSubstr;

constexpr int64_t kTokens = 2048;

// 32 heads, so that every kind is there.
ModelConfig TinyConfig() {
  ModelConfig config = Llama3Config8B();
  config.vocab_size = 512;
  config.hidden_size = 256;
  config.intermediate_size = 256;
  config.num_layers = 2;
  config.num_q_heads = 16;
  config.num_kv_heads = 4;
  config.max_positions = 8192;
  return config;
}

class StructuredModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto model = StructuredModel::Create(TinyConfig());
    OVERTURE_ASSERT_OK(model.status());
    model_.emplace(*std::move(model));
    OVERTURE_ASSERT_OK(model_->Write(dir_.path().string()));
    auto files = engine::LoadModelFiles(dir_.path().string());
    OVERTURE_ASSERT_OK(files.status());
    files_ = *std::move(files);
  }

  std::vector<float> Tensor(TensorRole role, int32_t layer) const {
    const auto shape = files_->TensorShape(role, layer);
    std::vector<float> values(shape->rows * shape->columns);
    OVERTURE_EXPECT_OK(files_->ReadTensor(role, layer, absl::MakeSpan(values)));
    return values;
  }

  // Rotated queries or keys of layer 0, [position - begin][head][head_dim].
  std::vector<float> Project(TensorRole role, int64_t begin) const {
    const ModelConfig& config = files_->config();
    const std::vector<float> embedding = Tensor(TensorRole::kTokenEmbedding, 0);
    const std::vector<float> weight = Tensor(role, 0);
    const std::vector<double> inv_freq = RopeInverseFrequencies(config);
    const std::vector<int32_t> tokens = model_->Prompt(kTokens);
    const int64_t hidden = config.hidden_size;
    const int64_t size = weight.size() / hidden;
    const int32_t half = config.head_dim / 2;
    std::vector<float> out;
    for (int64_t position = begin; position < kTokens; ++position) {
      const float* x = embedding.data() + tokens[position] * hidden;
      double squares = 0;
      for (int64_t i = 0; i < hidden; ++i) squares += x[i] * x[i];
      const double norm = 1 / std::sqrt(squares / hidden + config.rms_norm_eps);
      std::vector<float> row(size);
      for (int64_t r = 0; r < size; ++r) {
        float sum = 0;
        for (int64_t i = 0; i < hidden; ++i)
          sum += weight[r * hidden + i] * x[i];
        row[r] = static_cast<float>(sum * norm);
      }
      for (int64_t head = 0; head < size; head += config.head_dim) {
        for (int32_t i = 0; i < half; ++i) {
          float& a = row[head + i];
          float& b = row[head + half + i];
          const double c = std::cos(inv_freq[i] * position);
          const double s = std::sin(inv_freq[i] * position);
          std::tie(a, b) = std::pair(a * c - b * s, b * c + a * s);
        }
      }
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }

  TempDir dir_;
  std::optional<StructuredModel> model_;
  std::unique_ptr<ModelFiles> files_;
};

TEST_F(StructuredModelTest, HeadsShowTheirBandsSlashesSinkAndColumns) {
  const ModelConfig& config = files_->config();
  constexpr int64_t kRows = 64;
  const std::vector<float> q = Project(TensorRole::kQ, kTokens - kRows);
  const std::vector<float> k = Project(TensorRole::kK, 0);
  const std::vector<int32_t> tokens = model_->Prompt(kTokens);
  const int32_t dim = config.head_dim;
  const int32_t group = config.num_q_heads / config.num_kv_heads;
  for (int32_t h = 0; h < config.num_q_heads; ++h) {
    SCOPED_TRACE(h);
    const HeadStructure& head = model_->head(0, h);
    // Mean over the last rows of a row's logit for the key `key(row)`.
    const auto mean_logit = [&](auto key) {
      double sum = 0;
      for (int64_t r = 0; r < kRows; ++r) {
        const float* a = &q[(r * config.num_q_heads + h) * dim];
        const float* b =
            &k[(key(kTokens - kRows + r) * config.num_kv_heads + h / group) *
               dim];
        sum += std::inner_product(a, a + dim, b, 0.0);
      }
      return sum / kRows / std::sqrt(dim);
    };
    const auto at_distance = [&](int64_t distance) {
      return mean_logit([=](int64_t row) { return row - distance; });
    };
    // Half of the promised logit stands out of what surrounds it: noise of a
    // logit is 1, and a token of its own kind has only 0.55 (the sink) or 0.8
    // (marked) of the common component.
    double around = 0;
    for (int64_t d = 1100; d < 1900; d += 10) around += at_distance(d) / 80;
    for (const Slash& slash : head.slashes) {
      EXPECT_GT(at_distance(slash.distance), around + 0.5 * slash.logit)
          << "slash at " << slash.distance;
    }
    EXPECT_GT(mean_logit([](int64_t) { return kSinkToken; }),
              around + 0.5 * head.sink_logit);
    for (int64_t i = 1; i < kTokens - kRows - 1; ++i) {
      if (tokens[i] > kNumMarkedTokens || head.mark_logit < 7) continue;
      const double beside = (mean_logit([=](int64_t) { return i - 1; }) +
                             mean_logit([=](int64_t) { return i + 1; })) /
                            2;
      EXPECT_GT(mean_logit([=](int64_t) { return i; }),
                0.8 * beside + 0.5 * head.mark_logit)
          << "marked token at " << i;
    }
  }
}

TEST_F(StructuredModelTest, SparsePrefillComputesLessAndKeepsTheAnswer) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<engine::Backend> backend,
      engine::CreateCpuBackend(*files_, engine::ComputeDType::kF32));
  const std::vector<int32_t> tokens = model_->Prompt(kTokens);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill dense,
                                RunPrefill(*backend, tokens));
  engine::SelectorSpec spec{.kind = engine::SelectorSpec::Kind::kDynamic,
                            .vertical_slash = {.vertical = 128, .slash = 256},
                            .segment_tokens = 1024};
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill sparse,
      RunPrefill(*backend, tokens, {.selector = spec}));
  EXPECT_LT(sparse.output.density, 0.6);
  // K and V of the second layer are those of the first one's output, which
  // W_o and W_down keep small: what is lost shows in its V.
  double difference = 0, size = 0;
  for (int64_t row = 0; row < kTokens; ++row) {
    for (int32_t i = 0; i < 128; ++i) {
      const double expected = dense.kv.At(true, 1, 0, row, i);
      difference += std::pow(sparse.kv.At(true, 1, 0, row, i) - expected, 2);
      size += expected * expected;
    }
  }
  // Attention adds about 2% of the residual's size, of which less than a tenth
  // may be lost.
  EXPECT_LT(std::sqrt(difference / size), 2e-3);
}

// Twice is fine; a file of another model would be read as a part of this one.
TEST_F(StructuredModelTest, AFolderWithAnotherModelIsRefused) {
  OVERTURE_EXPECT_OK(model_->Write(dir_.path().string()));
  std::ofstream(dir_.Join("model-00001-of-00099.safetensors")) << "other";
  EXPECT_THAT(model_->Write(dir_.path().string()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("model-00001-of-00099.safetensors")));
}

TEST_F(StructuredModelTest, PatternFileHoldsTheHeadsSizes) {
  const ModelConfig& config = files_->config();
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const engine::HeadSizes sizes,
      engine::LoadMInferenceConfig(dir_.Join("heads.json"), config.num_layers,
                                   config.num_q_heads));
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (int32_t h = 0; h < config.num_q_heads; ++h) {
      EXPECT_EQ(sizes.layer(layer)[h], model_->head(layer, h).size);
    }
  }
}

TEST(StructuredModel8BTest, HasTheHeadsOfMInferencesFile) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const StructuredModel model,
                                StructuredModel::Create(Llama3Config8B()));
  std::map<std::pair<int32_t, int32_t>, int> count;
  for (int32_t layer = 0; layer < 32; ++layer) {
    for (int32_t h = 0; h < 32; ++h) {
      const kernels::VerticalSlashSize& size = model.head(layer, h).size;
      ++count[{size.vertical, size.slash}];
    }
  }
  const decltype(count) expected = {{{1000, 6096}, 473},
                                    {{30, 800}, 278},
                                    {{100, 800}, 153},
                                    {{3500, 100}, 89},
                                    {{500, 700}, 31}};
  EXPECT_EQ(count, expected);
}

TEST(StructuredModel8BTest, RefusesFrequenciesThatTurnOverTheContext) {
  ModelConfig config = Llama3Config8B();
  config.rope_theta = 500000;
  EXPECT_THAT(StructuredModel::Create(config),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rope_theta is 500000")));
}

TEST(StructuredModel8BTest, RefusesSmallVocabularies) {
  ModelConfig config = Llama3Config8B();
  config.vocab_size = 65;
  EXPECT_THAT(StructuredModel::Create(config),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("vocab_size is 65, must be above 65")));
}

}  // namespace
}  // namespace overture::bench
