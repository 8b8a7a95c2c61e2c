#include "engine/model_files.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/weight_table.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/default_model.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace overture::engine {
namespace {

using ::overture::testing::DefaultModelPath;
using ::overture::testing::MakeSafetensors;
using ::overture::testing::StatusIs;
using ::overture::testing::TempDir;
using ::overture::testing::TinyModel;
using ::overture::testing::TinyModelOptions;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}
void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void ExpectSameConfig(const ModelConfig& actual, const ModelConfig& expected) {
  EXPECT_EQ(actual.architecture, expected.architecture);
  EXPECT_EQ(actual.vocab_size, expected.vocab_size);
  EXPECT_EQ(actual.hidden_size, expected.hidden_size);
  EXPECT_EQ(actual.intermediate_size, expected.intermediate_size);
  EXPECT_EQ(actual.num_layers, expected.num_layers);
  EXPECT_EQ(actual.num_q_heads, expected.num_q_heads);
  EXPECT_EQ(actual.num_kv_heads, expected.num_kv_heads);
  EXPECT_EQ(actual.head_dim, expected.head_dim);
  EXPECT_EQ(actual.max_positions, expected.max_positions);
  EXPECT_EQ(actual.rms_norm_eps, expected.rms_norm_eps);
  EXPECT_EQ(actual.rope_theta, expected.rope_theta);
  EXPECT_EQ(actual.rope_scaling, expected.rope_scaling);
  EXPECT_EQ(actual.tied_embeddings, expected.tied_embeddings);
  EXPECT_EQ(actual.qkv_bias, expected.qkv_bias);
  EXPECT_EQ(actual.eos_token_ids, expected.eos_token_ids);
}

void ExpectSameWeights(const ModelFiles& actual, const TinyModel& expected) {
  for (int r = 0; r < kNumTensorRoles; ++r) {
    const TensorRole role = static_cast<TensorRole>(r);
    for (int32_t layer = 0; layer < expected.config().num_layers; ++layer) {
      const absl::Span<const float> weight = expected.Weight(role, layer);
      const auto shape = actual.TensorShape(role, layer);
      if (weight.empty()) {
        EXPECT_THAT(shape, StatusIs(absl::StatusCode::kNotFound));
        continue;
      }
      OVERTURE_ASSERT_OK(shape);
      ASSERT_EQ(shape->rows * shape->columns,
                static_cast<int64_t>(weight.size()));
      std::vector<float> values(weight.size());
      OVERTURE_ASSERT_OK(
          actual.ReadTensor(role, layer, absl::MakeSpan(values)));
      EXPECT_EQ(absl::MakeConstSpan(values), weight)
          << Name(role) << " of layer " << layer;
      std::vector<BFloat16> rounded(weight.size());
      OVERTURE_ASSERT_OK(
          actual.ReadRowsBf16(role, layer, 0, absl::MakeSpan(rounded)));
      for (size_t i = 0; i < rounded.size(); ++i) {
        ASSERT_EQ(rounded[i].bits, BFloat16(weight[i]).bits)
            << Name(role) << " of layer " << layer << ", " << i;
      }
    }
  }
}

// One model through every form; the forms differ only in their digests.
void ExpectRoundTrip(const TinyModelOptions& options) {
  const TinyModel model(options);
  const TempDir dir;
  OVERTURE_ASSERT_OK(model.WriteHuggingFace(dir.Join("whole")));
  OVERTURE_ASSERT_OK(model.WriteHuggingFace(dir.Join("sharded"), 3));
  OVERTURE_ASSERT_OK(model.WriteGguf(dir.Join("tiny.gguf")));
  for (const char* name : {"whole", "sharded", "tiny.gguf"}) {
    SCOPED_TRACE(name);
    OVERTURE_ASSERT_OK_AND_ASSIGN(const auto loaded,
                                  LoadModelFiles(dir.Join(name)));
    ExpectSameConfig(loaded->config(), model.config());
    ExpectSameWeights(*loaded, model);
  }
}

TEST(ModelFilesTest, ATinyLlamaIsTheSameInEveryForm) { ExpectRoundTrip({}); }

TEST(ModelFilesTest, SoIsOneInBFloat16WithLlama3ScalingAndItsOwnHead) {
  ExpectRoundTrip({.hidden_size = 48,
                   .num_q_heads = 6,
                   .num_kv_heads = 3,
                   .head_dim = 32,
                   .rope_theta = 5e5,
                   .rope_scaling = {.kind = RopeScaling::Kind::kLlama3,
                                    .factor = 8,
                                    .low_freq_factor = 1,
                                    .high_freq_factor = 4,
                                    .original_max_positions = 8192},
                   .tied_embeddings = false,
                   .dtype = DType::kBF16});
}

TEST(ModelFilesTest, SoIsAQwen2InFloat16WithLinearScaling) {
  ExpectRoundTrip(
      {.architecture = "qwen2",
       .rope_scaling = {.kind = RopeScaling::Kind::kLinear, .factor = 4},
       .dtype = DType::kF16});
}

TEST(ModelFilesTest, ShardsWithoutAnIndexAreFound) {
  const TempDir dir;
  const TinyModel model({});
  OVERTURE_ASSERT_OK(model.WriteHuggingFace(dir.Join("m"), 2));
  std::filesystem::remove(dir.Join("m/model.safetensors.index.json"));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto loaded,
                                LoadModelFiles(dir.Join("m")));
  ExpectSameWeights(*loaded, model);
}

TEST(ModelFilesTest, TheDigestOfAGgufFileIsThatOfItsPiecesDigests) {
  const TempDir dir;
  const std::string path = dir.Join("tiny.gguf");
  OVERTURE_ASSERT_OK(TinyModel({}).WriteGguf(path));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto loaded, LoadModelFiles(path));
  Sha256 piece;  // one: the file is shorter than 64 MiB
  piece.Update(ReadFile(path));
  Sha256 sha;
  sha.Update(piece.Digest().AsStringView());
  EXPECT_EQ(loaded->weights_digest(), sha.Digest());
}

TEST(ModelFilesTest, TheDigestOfAFolderMovesWithWeightsAndMeaning) {
  const TempDir dir;
  const auto digest = [&](const std::string& name) {
    const auto loaded = LoadModelFiles(dir.Join(name));
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? (*loaded)->weights_digest() : Sha256Digest();
  };
  OVERTURE_ASSERT_OK(TinyModel({}).WriteHuggingFace(dir.Join("a")));
  const Sha256Digest first = digest("a");
  EXPECT_EQ(digest("a"), first);
  OVERTURE_ASSERT_OK(TinyModel({.seed = 2}).WriteHuggingFace(dir.Join("b")));
  EXPECT_NE(digest("b"), first);
  OVERTURE_ASSERT_OK(
      TinyModel({.rms_norm_eps = 1e-6}).WriteHuggingFace(dir.Join("c")));
  EXPECT_NE(digest("c"), first);
}

TEST(ModelFilesTest, EosIdsOfTheGenerationConfigAreAdded) {
  const TempDir dir;
  OVERTURE_ASSERT_OK(TinyModel({}).WriteHuggingFace(dir.Join("m")));
  const std::string path = dir.Join("m/generation_config.json");
  WriteFile(path, R"({"eos_token_id": [256, 258]})");
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto loaded,
                                LoadModelFiles(dir.Join("m")));
  EXPECT_THAT(loaded->config().eos_token_ids, ElementsAre(256, 258));
  WriteFile(path, R"({"eos_token_id": 320})");
  EXPECT_THAT(LoadModelFiles(dir.Join("m")),
              StatusIs(kInvalid, HasSubstr("eos_token_ids is 320")));
}

TEST(ModelFilesTest, WhatIsNoModelIsRefusedByPath) {
  const TempDir dir;
  EXPECT_THAT(LoadModelFiles(dir.Join("absent")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("absent")));
  EXPECT_THAT(LoadModelFiles(dir.path().string()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json")));
  WriteFile(dir.Join("text"), "hello");
  EXPECT_THAT(LoadModelFiles(dir.Join("text")),
              StatusIs(kInvalid, HasSubstr("expected 'GGUF'")));
  OVERTURE_ASSERT_OK(TinyModel({}).WriteHuggingFace(dir.Join("m")));
  std::filesystem::remove(dir.Join("m/model.safetensors"));
  EXPECT_THAT(
      LoadModelFiles(dir.Join("m")),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("model.safetensors")));
}

TEST(ModelFilesTest, ATruncatedFileIsRefused) {
  const TempDir dir;
  const TinyModel model({});
  OVERTURE_ASSERT_OK(model.WriteGguf(dir.Join("tiny.gguf")));
  OVERTURE_ASSERT_OK(model.WriteHuggingFace(dir.Join("m")));
  for (const char* name : {"tiny.gguf", "m/model.safetensors"}) {
    const std::string whole = ReadFile(dir.Join(name));
    WriteFile(dir.Join(name), whole.substr(0, whole.size() - 1));
  }
  EXPECT_THAT(LoadModelFiles(dir.Join("tiny.gguf")), StatusIs(kInvalid));
  EXPECT_THAT(LoadModelFiles(dir.Join("m")),
              StatusIs(kInvalid, HasSubstr("model.safetensors")));
}

TEST(ModelFilesTest, AnIndexThatContradictsItsShardsIsRefused) {
  const TempDir dir;
  OVERTURE_ASSERT_OK(TinyModel({}).WriteHuggingFace(dir.Join("m"), 2));
  const std::string path = dir.Join("m/model.safetensors.index.json");
  const std::string index = ReadFile(path);
  nlohmann::json moved = nlohmann::json::parse(index);
  moved["weight_map"]["model.norm.weight"] = "model-1-of-2.safetensors";
  WriteFile(path, moved.dump());
  EXPECT_THAT(LoadModelFiles(dir.Join("m")),
              StatusIs(kInvalid, HasSubstr("'model.norm.weight' is in "
                                           "model-2-of-2.safetensors, the "
                                           "index places it in model-1")));
  nlohmann::json shorter = nlohmann::json::parse(index);
  shorter["weight_map"].erase("model.norm.weight");
  WriteFile(path, shorter.dump());
  EXPECT_THAT(LoadModelFiles(dir.Join("m")),
              StatusIs(kInvalid, HasSubstr("does not name it")));
  // A shard twice, without an index to tell.
  std::filesystem::remove(path);
  std::filesystem::copy_file(dir.Join("m/model-1-of-2.safetensors"),
                             dir.Join("m/model-3-of-2.safetensors"));
  EXPECT_THAT(LoadModelFiles(dir.Join("m")),
              StatusIs(kInvalid, HasSubstr("and in a file before it")));
}

TEST(ModelFilesTest, TensorsWithoutAPlaceAreRefusedUnlessRedundant) {
  const TempDir dir;
  OVERTURE_ASSERT_OK(TinyModel({}).WriteHuggingFace(dir.Join("m"), 2));
  std::filesystem::remove(dir.Join("m/model.safetensors.index.json"));
  const std::string extra = dir.Join("m/model-9.safetensors");
  WriteFile(extra, MakeSafetensors(
                       {{.name = "lm_head.weight",  // embeddings are tied
                         .dtype = "F32",
                         .shape = {1},
                         .data = "1234"},
                        {.name = "model.layers.0.self_attn.rotary_emb.inv_freq",
                         .dtype = "F32",
                         .shape = {1},
                         .data = "1234"}}));
  OVERTURE_EXPECT_OK(LoadModelFiles(dir.Join("m")));
  WriteFile(extra,
            MakeSafetensors({{.name = "model.layers.0.self_attn.q_norm.weight",
                              .dtype = "F32",
                              .shape = {1},
                              .data = "1234"}}));
  EXPECT_THAT(LoadModelFiles(dir.Join("m")),
              StatusIs(kUnimplemented, HasSubstr("q_norm.weight")));
}

// The file and how it was made: tests/goldens/make_default_model.py.
TEST(DefaultModelTest, EveryTensorEqualsTheReferenceImplementation) {
  const std::string path = DefaultModelPath();
  if (path.empty()) GTEST_SKIP() << ::overture::testing::kNoDefaultModel;
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto model, LoadModelFiles(path));
  const nlohmann::json goldens =
      nlohmann::json::parse(ReadFile("tests/goldens/default_model.json"));
  size_t num_tensors = 0;
  for (int r = 0; r < kNumTensorRoles; ++r) {
    const TensorRole role = static_cast<TensorRole>(r);
    for (int32_t layer = 0; layer < model->config().num_layers; ++layer) {
      if (layer > 0 && !IsPerLayer(role)) continue;
      const auto shape = model->TensorShape(role, layer);
      if (!shape.ok()) continue;
      std::vector<float> values(shape->rows * shape->columns);
      OVERTURE_ASSERT_OK(
          model->ReadTensor(role, layer, absl::MakeSpan(values)));
      const std::string name = GgufName(role, layer);
      ASSERT_TRUE(goldens.contains(name)) << name;
      const nlohmann::json& golden = goldens.at(name);
      ++num_tensors;
      ASSERT_EQ(golden.at("size"), values.size()) << name;
      double sum = 0, absolute = 0, squares = 0, weighted = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const double value = values[i];
        const double factor = static_cast<double>(i % 1009 + 1);
        sum += value;
        absolute += std::abs(value);
        squares += value * value;
        weighted += value * factor;
      }
      // n additions of doubles, each off by 2^-53 of a partial sum, which is at
      // most the sum of the absolute values; twice, for the reference.
      const double error = 2.0 * values.size() * 0x1p-53;
      EXPECT_NEAR(sum, golden.at("sum"), error * absolute) << name;
      EXPECT_NEAR(squares, golden.at("sum_of_squares"), error * squares)
          << name;
      EXPECT_NEAR(weighted, golden.at("weighted_sum"), error * absolute * 1009)
          << name;
    }
  }
  EXPECT_EQ(num_tensors, goldens.size());
}

TEST(DefaultModelTest, ConfigIsTheOneOfSmolLm2) {
  const std::string path = DefaultModelPath();
  if (path.empty()) GTEST_SKIP() << ::overture::testing::kNoDefaultModel;
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto model, LoadModelFiles(path));
  ExpectSameConfig(model->config(), {.architecture = "llama",
                                     .vocab_size = 49152,
                                     .hidden_size = 576,
                                     .intermediate_size = 1536,
                                     .num_layers = 30,
                                     .num_q_heads = 9,
                                     .num_kv_heads = 3,
                                     .head_dim = 64,
                                     .max_positions = 8192,
                                     .rms_norm_eps = double{1e-5f},
                                     .rope_theta = 1e5,
                                     .tied_embeddings = true,
                                     .eos_token_ids = {2}});
}

}  // namespace
}  // namespace overture::engine
