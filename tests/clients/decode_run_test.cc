#include "clients/tool/decode_run.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::clients {
namespace {

using ::overture::testing::StatusIs;
using ::testing::ElementsAre;

TEST(DecodeReportTest, TheWorkersLineIsRead) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      DecodeReport report,
      ParseDecodeReport(
          R"({"token_ids":[5,6],"text":"hi","stopped":"eos","kv_bytes":123,)"
          R"("load_seconds":0.5,"fetch_seconds":0.25,)"
          R"("seconds_per_token":0.125,"more":1})"));
  EXPECT_THAT(report.token_ids, ElementsAre(5, 6));
  EXPECT_EQ(report.text, "hi");
  EXPECT_EQ(report.stopped, "eos");
  EXPECT_EQ(report.kv_bytes, 123);
  EXPECT_EQ(report.fetch_seconds, 0.25);
}

TEST(DecodeReportTest, AnythingElseIsInvalid) {
  for (const char* text : {"", "{", "[]", "{}", R"({"token_ids":"x"})"}) {
    EXPECT_THAT(ParseDecodeReport(text).status(),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

}  // namespace
}  // namespace overture::clients
