// The programs that look into a model's heads, as processes, on the model whose
// heads are known on paper.
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "clients/tool/request_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/harness.h"
#include "tests/support/induction_model.h"
#include "tests/support/status_matchers.h"

namespace overture::testing {
namespace {

using ::testing::HasSubstr;

class ModelToolsTest : public EndToEndTest {
 protected:
  void SetUp() override {
    OVERTURE_ASSERT_OK(WriteInductionModel(dir_.Join("model")));
  }
  ProgramResult Run(const std::string& command,
                    const std::vector<std::string>& args) {
    std::vector<std::string> all = {command, "--device", "cpu", "--model",
                                    dir_.Join("model")};
    all.insert(all.end(), args.begin(), args.end());
    return RunProgram("overture", all);
  }
  static std::string Prompt(int64_t length, int64_t key) {
    return absl::StrJoin(MakeInductionPrompt(length, key).tokens, ",");
  }
  std::string Read(const std::string& name) {
    auto text = clients::ReadTextFile(dir_.Join(name));
    EXPECT_TRUE(text.ok()) << text.status();
    return text.value_or("");
  }
};

TEST_F(ModelToolsTest, InspectWritesAPageOfARealRun) {
  const ProgramResult run =
      Run("inspect", {"--selector", "a_shape:64,128", "--out",
                      dir_.Join("page.html"), "--tokens", Prompt(900, 300)});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("kept mass"));
  EXPECT_THAT(Read("page.html"), HasSubstr("a_shape"));
  const ProgramResult wrong =
      Run("inspect", {"--selector", "nonsense", "--tokens", "1"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("nonsense"));
}

TEST_F(ModelToolsTest, CalibrateWritesWhatInspectAndAServerRead) {
  const std::string out = dir_.Join("heads.json");
  const std::string theirs = dir_.Join("minference.json");
  const ProgramResult run =
      Run("calibrate",
          {"--density", "0.9", "--out", out, "--minference-out", theirs,
           "--tokens", absl::StrCat(Prompt(900, 300), ";", Prompt(700, 20))});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("2 heads, each its own"));
  const auto json = nlohmann::json::parse(Read("heads.json"));
  EXPECT_EQ(json["samples"].size(), 2);
  // Layer 0 looks one back, which every size has: the cheapest is taken, and
  // loses nothing. Its logits of hundreds leave 2^-24 of themselves.
  const auto& head = json["layers"][0][0];
  EXPECT_NEAR(head["recall"], 1, 1e-4);
  EXPECT_NEAR(head["error"], 0, 1e-6);
  EXPECT_EQ(head["slash"], 100);
  for (const std::string& file : {out, theirs}) {
    const ProgramResult inspect =
        Run("inspect",
            {"--selector", "vertical_slash:per_head", "--head-sizes", file,
             "--out", dir_.Join("page.html"), "--tokens", Prompt(900, 300)});
    EXPECT_EQ(inspect.exit_code, 0) << inspect.err;
  }
  // Of other weights.
  std::string other = Read("heads.json");
  const std::string digest = json["model"]["weights_sha256"];
  other.replace(other.find(digest), digest.size(), std::string(64, '0'));
  std::ofstream(dir_.Join("other.json")) << other;
  const ProgramResult refused =
      Run("inspect", {"--selector", "vertical_slash:per_head", "--head-sizes",
                      dir_.Join("other.json"), "--tokens", "1"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("was made for a model whose weights"));
}

}  // namespace
}  // namespace overture::testing
