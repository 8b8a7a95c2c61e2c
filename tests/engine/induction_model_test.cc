// The hand-built model (tests/support/induction_model.h): which positions
// selectors and views must keep is known, so they are asserted exactly.
#include "tests/support/induction_model.h"

#include <memory>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "engine/decoder.h"
#include "engine/model_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::engine {
namespace {

using ::overture::testing::HarnessOptions;
using ::overture::testing::InductionPrompt;
using ::overture::testing::MakeInductionPrompt;
using ::overture::testing::RecordedPrefill;
using ::overture::testing::RunPrefill;
using ::testing::ElementsAre;

class InductionModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = dir_.Join("model");
    OVERTURE_ASSERT_OK(::overture::testing::WriteInductionModel(folder));
    OVERTURE_ASSERT_OK_AND_ASSIGN(const auto files, LoadModelFiles(folder));
    OVERTURE_ASSERT_OK_AND_ASSIGN(backend_,
                                  CreateCpuBackend(*files, ComputeDType::kF32));
  }
  RecordedPrefill Run(const InductionPrompt& prompt,
                      const HarnessOptions& options = {}) {
    auto run = RunPrefill(*backend_, prompt.tokens, options);
    OVERTURE_EXPECT_OK(run);
    return *std::move(run);
  }
  bool Answers(const InductionPrompt& prompt, const SelectorSpec& selector) {
    return Argmax(Run(prompt, {.selector = selector}).output.logits) ==
           prompt.answer;
  }
  // Of a view that keeps `window` rows and `others`, per layer.
  std::vector<std::vector<int32_t>> Kept(const InductionPrompt& prompt,
                                         int32_t window, int32_t others) {
    const RecordedPrefill run = Run(
        prompt, {.view = compress::SnapKvOptions{.window = window,
                                                 .capacity = window + others,
                                                 .pooling_width = 1}});
    std::vector<std::vector<int32_t>> kept;
    for (const auto& layer : run.output.view->plan.positions) {
      kept.push_back(layer[0]);
    }
    return kept;
  }

  ::overture::testing::TempDir dir_;
  std::unique_ptr<Backend> backend_;
};

TEST_F(InductionModelTest, AnswersWithWhatFollowedTheKey) {
  for (const int64_t length : {5, 100, 1000, 2048}) {
    for (const int64_t key : {int64_t{1}, length / 2, length - 3}) {
      const InductionPrompt prompt = MakeInductionPrompt(length, key);
      const std::vector<float> logits = Run(prompt).output.logits;
      EXPECT_EQ(Argmax(logits), prompt.answer) << length << " " << key;
      // Four slots of the residual are 1, and the norm makes each of them
      // sqrt(256 / 4): the answer's logit is 8 and no other token has one.
      EXPECT_NEAR(logits[static_cast<size_t>(prompt.answer)], 8, 1e-3);
      EXPECT_NEAR(logits[1], 0, 1e-3);
    }
  }
}

TEST_F(InductionModelTest, AViewKeepsTheOneRowThatEachLayerLooksAt) {
  // Layer 0's window rows look one back: outside of the window that is the row
  // before it. Of layer 1's, the last one looks at the answer.
  for (const int64_t key : {1, 300, 900}) {
    const InductionPrompt prompt = MakeInductionPrompt(1000, key);
    const auto answer = static_cast<int32_t>(prompt.answer_position);
    const auto kept = Kept(prompt, /*window=*/4, /*others=*/1);
    EXPECT_THAT(kept[0], ElementsAre(995, 996, 997, 998, 999));
    EXPECT_THAT(kept[1], ElementsAre(answer, 996, 997, 998, 999));
  }
}

TEST_F(InductionModelTest, AShapeLosesWhatIsNeitherSinkNorLocal) {
  const SelectorSpec selector = {
      .kind = SelectorSpec::Kind::kAShape, .num_initial = 64, .num_local = 128};
  EXPECT_TRUE(Answers(MakeInductionPrompt(1000, 10), selector));
  EXPECT_TRUE(Answers(MakeInductionPrompt(1000, 950), selector));
  EXPECT_FALSE(Answers(MakeInductionPrompt(1000, 500), selector));
}

TEST_F(InductionModelTest, OneColumnBeyondTheSinksIsAllThatItTakes) {
  // 30 columns are sinks, and 50 distances local: the 31st column goes to what
  // the last of 64 probe rows sees with all of its mass.
  const InductionPrompt prompt = MakeInductionPrompt(1000, 500);
  const auto selector = [](int32_t vertical) {
    return SelectorSpec{.kind = SelectorSpec::Kind::kDynamic,
                        .vertical_slash = {.vertical = vertical, .slash = 50}};
  };
  EXPECT_FALSE(Answers(prompt, selector(30)));
  EXPECT_TRUE(Answers(prompt, selector(31)));
}

}  // namespace
}  // namespace overture::engine
