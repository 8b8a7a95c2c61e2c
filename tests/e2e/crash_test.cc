// Nothing that was acknowledged is lost, nothing that was not is half there.
#include <signal.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/support/status_matchers.h"

namespace overture::testing {
namespace {

using clients::PrefillResult;

constexpr int64_t kAnswerTokens = 12;
constexpr int64_t kFirstTokens = 2000;
constexpr int64_t kSecondTokens = 1000;

// A moment of the second turn's prefill.
struct Moment {
  const char* name;
  v1::PrefillEvent::EventCase event;
  int layers_done = 0;  // for kProgress, at least
};

class KillTest : public EndToEndTest,
                 public ::testing::WithParamInterface<Moment> {};

INSTANTIATE_TEST_SUITE_P(
    Moments, KillTest,
    ::testing::Values(Moment{"Queued", v1::PrefillEvent::kQueued},
                      Moment{"Matched", v1::PrefillEvent::kMatched},
                      Moment{"FirstLayer", v1::PrefillEvent::kProgress, 1},
                      Moment{"ThirdLayer", v1::PrefillEvent::kProgress, 3},
                      Moment{"FirstToken", v1::PrefillEvent::kFirstToken},
                      Moment{"Done", v1::PrefillEvent::kDone}),
    [](const auto& info) { return info.param.name; });

TEST_P(KillTest, AcknowledgedTurnsSurviveAndTheSessionGoesOn) {
  StartServer();
  v1::CreateSessionRequest create;
  create.set_id("s");
  OVERTURE_ASSERT_OK(client().CreateSession(create));
  const std::vector<int32_t> first = reference_->RandomPrompt(kFirstTokens, 1);
  OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult acknowledged,
                                client().Prefill(Request(first, "s")));
  ASSERT_TRUE(acknowledged.done.persisted());

  const std::vector<int32_t> second =
      reference_->RandomPrompt(kSecondTokens, 2);
  const Moment& moment = GetParam();
  bool was_done = false;
  client()
      .Prefill(Request(second, "s"),
               [&](const v1::PrefillEvent& event) {
                 if (event.has_done()) was_done = true;
                 if (event.event_case() == moment.event &&
                     event.progress().layers_done() >= moment.layers_done) {
                   server().process().Kill();
                 }
               })
      .IgnoreError();
  ASSERT_FALSE(server().process().running()) << "the moment never came";

  StartServer();
  OVERTURE_ASSERT_OK_AND_ASSIGN(v1::Session session, client().GetSession("s"));
  // The second turn is part of the history or it is not. An answer that was
  // sent must be; one that was not may be, if the kill fell between the commit
  // and the answer.
  if (was_done) {
    EXPECT_EQ(session.num_turns(), 2);
  }
  std::vector<int32_t> history = first;
  std::vector<int32_t> next = second;
  if (session.num_turns() == 2) {
    history = Concat(first, second);
    next = reference_->RandomPrompt(70, 3);
  }
  EXPECT_EQ(session.num_tokens(), static_cast<int64_t>(history.size()));

  OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult result,
                                client().Prefill(Request(next, "s")));
  EXPECT_GE(result.done.stats().reused_tokens(),
            static_cast<int64_t>(history.size()) * 9 / 10);
  ExpectAnswer(result.done.handle(),
               {.prompt = Concat(history, next), .max_tokens = kAnswerTokens});
}

class StopTest : public EndToEndTest {};

TEST_F(StopTest, SigtermWithAnIdleServerExitsWithZero) {
  StartServer();
  OVERTURE_ASSERT_OK(server().process().Signal(SIGTERM));
  OVERTURE_ASSERT_OK_AND_ASSIGN(int exit_code,
                                server().process().Wait(kPatience));
  EXPECT_EQ(exit_code, 0);
}

// Sends SIGTERM when the first rows arrive.
class TerminatingSink : public clients::KvSink {
 public:
  explicit TerminatingSink(clients::ChildProcess& process)
      : process_(process) {}
  absl::Status Begin(const clients::KvFetchInfo&) override {
    return absl::OkStatus();
  }
  absl::Status Rows(const clients::KvRows&) override {
    if (!sent_) {
      sent_ = true;
      return process_.Signal(SIGTERM);
    }
    return absl::OkStatus();
  }

 private:
  clients::ChildProcess& process_;
  bool sent_ = false;
};

TEST_F(StopTest, SigtermLetsAStreamInFlightEndAndExitsWithZero) {
  StartServer();
  // At least 1 KiB a token (4 layers x 2 heads x 16 x 2 x 4 bytes), 16 MiB in
  // all, more than a stream buffers.
  v1::PrefillRequest request = Request(reference_->RandomPrompt(16384, 1));
  request.mutable_selector()->mutable_a_shape()->set_num_local(256);
  OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult result,
                                client().Prefill(request));
  TerminatingSink sink(server().process());
  OVERTURE_EXPECT_OK(client().Fetch(result.done.handle(),
                                    {.max_chunk_bytes = 64 << 10}, sink));
  OVERTURE_ASSERT_OK_AND_ASSIGN(int exit_code,
                                server().process().Wait(kPatience));
  EXPECT_EQ(exit_code, 0);
}

TEST_F(StopTest, ACancelledPrefillLeavesTheServerReadyForTheNext) {
  StartServer();
  // Long enough to be still under way when the word of the cancellation comes.
  const std::vector<int32_t> prompt =
      reference_->RandomPrompt(OnGpu() ? 60000 : 12000, 4);
  std::stop_source stop;
  EXPECT_THAT(client()
                  .Prefill(Request(prompt),
                           [&](const v1::PrefillEvent& event) {
                             if (event.has_matched()) stop.request_stop();
                           },
                           {.stop = stop.get_token()})
                  .status(),
              StatusIs(absl::StatusCode::kCancelled));
  const std::vector<int32_t> small = reference_->RandomPrompt(300, 5);
  OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult result,
                                client().Prefill(Request(small)));
  ExpectAnswer(result.done.handle(),
               {.prompt = small, .max_tokens = kAnswerTokens});
  // Nothing of the cancelled one was published.
  v1::LookupRequest lookup;
  lookup.mutable_token_ids()->Add(prompt.begin(), prompt.end());
  OVERTURE_ASSERT_OK_AND_ASSIGN(v1::LookupResponse found,
                                client().Lookup(lookup));
  EXPECT_EQ(found.matched_tokens(), 0);
}

}  // namespace
}  // namespace overture::testing
