// The demo's driver on a tiny model and a short document.
#include <fstream>
#include <string>

#include "absl/strings/str_join.h"
#include "clients/tool/request_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/harness.h"
#include "tests/support/status_matchers.h"

namespace overture::testing {
namespace {

using ::testing::HasSubstr;

class DemoTest : public EndToEndTest {
 protected:
  ProgramResult RunDemo(std::vector<std::string> args) {
    std::string text;
    for (int i = 0; i < 600; ++i) {
      text += "Paragraph " + std::to_string(i) + " of a short document.\n\n";
    }
    std::ofstream(dir_.Join("document")) << text;
    args.insert(args.end(),
                {"--model", model_path_, "--file", dir_.Join("document"),
                 "--max-answer-tokens", "8", "--json", dir_.Join("json"),
                 "--server-flags", absl::StrJoin(numerics_, " ")});
    return RunProgram("overture_demo", args);
  }
};

TEST_F(DemoTest, EveryStepRunsAndTheSecondTurnReusesTheFirst) {
  const ProgramResult run =
      RunDemo({"--max-document-tokens", "3000", "--view", "snapkv:32,128",
               "--selector", "vertical_slash:100,100"});
  ASSERT_EQ(run.exit_code, 0) << run.err << run.out;
  EXPECT_THAT(run.out, HasSubstr("(cut from"));
  EXPECT_THAT(run.out, HasSubstr("times sooner than cold"));
  OVERTURE_ASSERT_OK_AND_ASSIGN(std::string text,
                                clients::ReadTextFile(dir_.Join("json")));
  const nlohmann::json json =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  ASSERT_EQ(json["prefills"].size(), 3u);
  EXPECT_GE(json["prefills"][0]["num_tokens"], 2600);
  EXPECT_EQ(json["prefills"][0]["reused_tokens"], 0);
  EXPECT_EQ(json["prefills"][1]["reused_tokens"], 0);
  EXPECT_LT(json["prefills"][1]["density"], 1.0);
  EXPECT_GE(json["reused_fraction"], 0.9);
  EXPECT_EQ(json["answers"].size(), 4u);
}

TEST_F(DemoTest, AStepThatFailsEndsItWithAnError) {
  const ProgramResult run = RunDemo({"--view", "snapkv:64,32"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("capacity"));
}

}  // namespace
}  // namespace overture::testing
