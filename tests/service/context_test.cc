#include "service/context.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/status.h"
#include "tests/support/status_matchers.h"

namespace overture::service {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

TEST(CallGateTest, RefusesBeyondItsLimitByName) {
  CallGate gate("prefills", 2);
  EXPECT_THAT(gate.Enter(), IsOk());
  EXPECT_THAT(gate.Enter(), IsOk());
  EXPECT_THAT(gate.Enter(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("prefills: 2 under way, limit 2")));
  gate.Leave();
  EXPECT_EQ(gate.running(), 1);
  EXPECT_THAT(gate.Enter(), IsOk());
}

TEST(CallGateTest, DrainingRefusesAndWaits) {
  CallGate gate("prefills", 2);
  EXPECT_TRUE(gate.WaitIdle(absl::InfinitePast()));
  ASSERT_THAT(gate.Enter(), IsOk());
  gate.Drain();
  EXPECT_THAT(gate.Enter(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(gate.WaitIdle(absl::InfinitePast()));
  gate.Leave();
  EXPECT_TRUE(gate.WaitIdle(absl::InfiniteFuture()));
}

TEST(RetryHintTest, FollowsTheLastPrefillsWithinItsBounds) {
  RetryHint hint;
  EXPECT_EQ(hint.Millis(), 1000);
  hint.Note(absl::Seconds(3));
  EXPECT_EQ(hint.Millis(), 2000);
  for (int i = 0; i < 20; ++i) hint.Note(absl::ZeroDuration());
  EXPECT_EQ(hint.Millis(), 100);
  for (int i = 0; i < 20; ++i) hint.Note(absl::Hours(1));
  EXPECT_EQ(hint.Millis(), 60000);
}

TEST(StatusTest, CodesAndMessagesGoOverUnchanged) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  for (int code = 1; code <= 16; ++code) {
    const grpc::Status status =
        ToGrpc(absl::Status(static_cast<absl::StatusCode>(code), "why"));
    EXPECT_EQ(static_cast<int>(status.error_code()), code);
    EXPECT_EQ(status.error_message(), "why");
  }
}

}  // namespace
}  // namespace overture::service
