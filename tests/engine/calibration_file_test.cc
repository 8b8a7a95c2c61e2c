#include "engine/calibration_file.h"

#include <fstream>
#include <string>

#include "absl/strings/str_replace.h"
#include "engine/minference_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::engine {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::LoadedTinyModel;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

Sha256Digest Digest(uint8_t first) {
  Sha256Digest digest;
  digest.bytes[0] = first;
  return digest;
}

Calibration Example(const Sha256Digest& weights, int32_t layers,
                    int32_t heads) {
  Calibration calibration{
      .model = "tiny \"<model>\"",
      .weights_digest = weights,
      .samples = {{"a.txt", Digest(7), 1234}, {"b.txt", Digest(8), 99}},
      .seed = 5,
      .rows = 16,
      .density = 0.25,
      .segment_tokens = 16384};
  HeadSizes::Table table(layers);
  calibration.scores.resize(layers);
  for (int32_t layer = 0; layer < layers; ++layer) {
    for (int32_t head = 0; head < heads; ++head) {
      table[layer].push_back(
          head % 2 == 0 ? kernels::StaticSize(64 + head, 128)
                        : kernels::VerticalSlashSize{.vertical = 100 + layer,
                                                     .slash = 200 + head});
      calibration.scores[layer].push_back(
          {.density = 0.5, .recall = 0.75, .error = 0.125});
    }
  }
  calibration.sizes = *HeadSizes::Create(table);
  return calibration;
}

TEST(CalibrationFile, IsReadAsItWasWritten) {
  Calibration want = Example(Digest(1), 2, 4);
  HeadSizes::Table table = {
      {want.sizes.layer(0).begin(), want.sizes.layer(0).end()},
      {want.sizes.layer(1).begin(), want.sizes.layer(1).end()}};
  table[1][2] = {
      .mass = 0.5f,
      .blocks = {.threshold = 0.25f, .count = 9, .correct_means = true}};
  want.sizes = *HeadSizes::Create(table);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const Calibration got,
      ParseCalibration(CalibrationJson(want), "it", Digest(1), 2, 4));
  EXPECT_EQ(got.model, want.model);
  EXPECT_EQ(got.weights_digest, want.weights_digest);
  EXPECT_EQ(got.seed, 5);
  EXPECT_EQ(got.rows, 16);
  EXPECT_EQ(got.density, 0.25);
  EXPECT_EQ(got.segment_tokens, 16384);
  ASSERT_EQ(got.samples.size(), 2);
  EXPECT_EQ(got.samples[0].name, "a.txt");
  EXPECT_EQ(got.samples[0].digest, Digest(7));
  EXPECT_EQ(got.samples[0].num_tokens, 1234);
  EXPECT_EQ(got.sizes, want.sizes);
  EXPECT_EQ(got.scores[1][3].recall, 0.75);
  EXPECT_EQ(got.scores[1][3].error, 0.125);
}

TEST(CalibrationFile, OfAnotherModelIsRefused) {
  const std::string text = CalibrationJson(Example(Digest(1), 2, 4));
  EXPECT_THAT(ParseCalibration(text, "heads.json", Digest(2), 2, 4),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("heads.json: was made for a model whose")));
}

TEST(CalibrationFile, WhatIsWrongIsNamed) {
  const std::string text = CalibrationJson(Example(Digest(1), 2, 4));
  const auto expect = [&](absl::string_view from, absl::string_view to,
                          const char* message) {
    const std::string changed = absl::StrReplaceAll(text, {{from, to}});
    ASSERT_NE(changed, text);
    EXPECT_THAT(
        ParseCalibration(changed, "it", Digest(1), 2, 4),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect("calibration 1", "calibration 2", "format is not");
  expect("\"vertical\": 101", "\"vertical\": -1",
         "layer 1: head 1: vertical is -1");
  expect("\"slash\": 201", "\"slash\": \"x\"", "slash");
  expect("\"seed\"", "\"sead\"", "seed");
  expect("\"layers\"", "\"layer\"", "layers");
  expect("\"samples\": [", "\"samples\": 3, \"old\": [", "samples");
  EXPECT_THAT(ParseCalibration(text, "it", Digest(1), 3, 4),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("layers is no list of 3")));
  EXPECT_THAT(ParseCalibration(text, "it", Digest(1), 2, 5),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("layer 0 is no list of 5")));
  EXPECT_THAT(ParseCalibration("[]", "it", Digest(1), 2, 4),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("it")));
}

TEST(LoadHeadSizes, TakesBothKindsOfFile) {
  const LoadedTinyModel model({});
  const ModelConfig& config = model.files().config();
  const ::overture::testing::TempDir dir;
  const Calibration calibration = Example(
      model.files().weights_digest(), config.num_layers, config.num_q_heads);
  const std::vector<std::vector<double>> scores(
      config.num_layers, std::vector<double>(config.num_q_heads, 0.5));
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const std::string exported,
      MInferenceConfigJson(calibration.sizes, scores));
  std::ofstream(dir.Join("ours")) << " " << CalibrationJson(calibration);
  std::ofstream(dir.Join("theirs")) << exported;
  std::ofstream(dir.Join("other")) << CalibrationJson(
      Example(Digest(1), config.num_layers, config.num_q_heads));
  for (const char* name : {"ours", "theirs"}) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(const HeadSizes sizes,
                                  LoadHeadSizes(dir.Join(name), model.files()));
    EXPECT_EQ(sizes, calibration.sizes) << name;
  }
  EXPECT_THAT(
      LoadHeadSizes(dir.Join("other"), model.files()),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("other")));
}

}  // namespace
}  // namespace overture::engine
