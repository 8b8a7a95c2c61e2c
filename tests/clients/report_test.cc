#include "clients/demo/report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace overture::clients {
namespace {

using ::testing::HasSubstr;

DemoReport Sample() {
  DemoReport report;
  PrefillRow row{.name = "dense, cold"};
  row.result.done.set_num_tokens(1000);
  row.result.done.set_persisted(true);
  v1::PrefillStats* stats = row.result.done.mutable_stats();
  stats->set_computed_tokens(1000);
  stats->set_density(1);
  stats->set_ttft_seconds(4);
  stats->set_kv_bytes(2'000'000);
  report.prefills.push_back(row);
  AnswerRow answer{.name = "full KV", .question = "Why?"};
  answer.report.text = " Because.\nReally. ";
  answer.report.kv_bytes = 2'000'000;
  report.answers.push_back(answer);
  report.reused_fraction = 0.957;
  report.ttft_ratio = 12.34;
  return report;
}

TEST(ReportTest, RateIsTokensOverTimeToFirstToken) {
  EXPECT_EQ(PromptRate(Sample().prefills[0].result), 250);
  EXPECT_EQ(PromptRate({}), 0);
}

TEST(ReportTest, ShortTurnsCannotReuseTheirLast64Tokens) {
  EXPECT_TRUE(ReusedEnough(1000, 1100, 900));
  EXPECT_FALSE(ReusedEnough(1000, 1100, 899));
  EXPECT_TRUE(ReusedEnough(42, 72, 8));  // 19%, and all that is possible
  EXPECT_FALSE(ReusedEnough(42, 72, 7));
  EXPECT_TRUE(ReusedEnough(42, 60, 0));
}

TEST(ReportTest, TheTextHoldsTheTableTheAnswersAndTheComparison) {
  const std::string text = ToText(Sample());
  EXPECT_THAT(text, HasSubstr("prefill      tokens  computed  reused"));
  EXPECT_THAT(text, HasSubstr("dense, cold    1000      1000       0"));
  EXPECT_THAT(text, HasSubstr("250  2.0 MB     -        yes"));
  EXPECT_THAT(text, HasSubstr("Q: Why?"));
  EXPECT_THAT(text, HasSubstr("full KV: Because.\n      Really.\n"));
  EXPECT_THAT(text, HasSubstr("95.7% of the first turn reused"));
  EXPECT_THAT(text, HasSubstr("12.3 times sooner"));
}

TEST(ReportTest, TheJsonHoldsTheSameNumbers) {
  const nlohmann::json json = ToJson(Sample());
  EXPECT_EQ(json["prefills"][0]["name"], "dense, cold");
  EXPECT_EQ(json["prefills"][0]["kv_bytes"], 2'000'000);
  EXPECT_EQ(json["answers"][0]["question"], "Why?");
  EXPECT_EQ(json["ttft_ratio"], 12.34);
}

}  // namespace
}  // namespace overture::clients
