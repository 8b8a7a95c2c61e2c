#include "service/prefill_service.h"

#include <thread>

#include "base/check.h"
#include "tests/service/harness.h"

namespace overture::service {
namespace {

using ::testing::HasSubstr;

std::vector<v1::PrefillEvent::EventCase> Kinds(
    const std::vector<v1::PrefillEvent>& events) {
  std::vector<v1::PrefillEvent::EventCase> kinds;
  for (const auto& event : events) {
    // How many progress events arrive depends on the reader's speed.
    if (kinds.empty() || !event.has_progress() ||
        kinds.back() != event.event_case()) {
      kinds.push_back(event.event_case());
    }
  }
  return kinds;
}

TEST(PrefillServiceTest, EventsComeInTheOrderOfTheContract) {
  Harness harness;
  const std::vector<int32_t> ids = Ids(300);
  const PrefillAnswer answer = RunPrefill(harness, TokensRequest(ids));
  ASSERT_THAT(answer.status, HasCode(grpc::StatusCode::OK));
  EXPECT_THAT(Kinds(answer.events),
              ::testing::ElementsAre(
                  v1::PrefillEvent::kQueued, v1::PrefillEvent::kMatched,
                  v1::PrefillEvent::kProgress, v1::PrefillEvent::kFirstToken,
                  v1::PrefillEvent::kDone));
  EXPECT_EQ(answer.events[0].queued().num_tokens(), 300);
  EXPECT_EQ(answer.events[1].matched().reused_tokens(), 0);
  EXPECT_EQ(answer.events[1].matched().computed_tokens(), 300);
  const auto& progress = answer.events[answer.events.size() - 3].progress();
  EXPECT_EQ(progress.layers_done(), 3);
  EXPECT_EQ(progress.num_layers(), 3);
  const auto& first = answer.events[answer.events.size() - 2].first_token();
  EXPECT_EQ(first.token(), testing::FakeFirstToken(ids, 1000));
  EXPECT_LT(first.log_probability(), 0);
  EXPECT_EQ(answer.done().num_tokens(), 300);
  EXPECT_TRUE(answer.done().persisted());
  EXPECT_EQ(answer.done().store_error(), "");
  EXPECT_EQ(answer.done().stats().attention_policy(), "dense");
  EXPECT_EQ(answer.done().stats().computed_tokens(), 300);
  EXPECT_EQ(answer.done().handle().size(), 32u) << "128 bits in hexadecimal";
}

TEST(PrefillServiceTest, ASecondPromptReusesTheFirstOnesBlocks) {
  Harness harness;
  RunPrefill(harness, TokensRequest(Ids(600)));
  const PrefillAnswer answer = RunPrefill(harness, TokensRequest(Ids(700)));
  // 600 tokens are two blocks and a tail; the last 64 of 700 do not count.
  EXPECT_EQ(answer.done().stats().reused_tokens(), 600);
  v1::PrefillRequest fresh = TokensRequest(Ids(700));
  fresh.set_reuse(v1::PrefillRequest::REUSE_NONE);
  EXPECT_EQ(RunPrefill(harness, fresh).done().stats().reused_tokens(), 0);
}

// Of the fake model's shape: three layers of two heads.
engine::HeadSizes FakeSizes(int32_t vertical) {
  auto sizes = engine::HeadSizes::Create(
      {{{vertical, 800}, {}}, {{}, {}}, {{}, kernels::StaticSize(4, 64)}});
  OVERTURE_CHECK(sizes.ok());
  return *sizes;
}

TEST(PrefillServiceTest, SizesPerHeadRunAndAreAProvenanceOfTheirOwn) {
  Harness::Options options = Harness::Defaults();
  options.server.limits.head_sizes = FakeSizes(30);
  Harness harness(options);
  v1::PrefillRequest request = TokensRequest(Ids(600));
  RunPrefill(harness, request);
  request.mutable_selector()->mutable_vertical_slash()->set_per_head(true);
  const PrefillAnswer answer = RunPrefill(harness, request);
  ASSERT_THAT(answer.status, HasCode(grpc::StatusCode::OK));
  EXPECT_THAT(answer.done().stats().attention_policy(),
              HasSubstr(FakeSizes(30).digest().Hex()));
  EXPECT_EQ(answer.done().stats().reused_tokens(), 0);
  EXPECT_GT(RunPrefill(harness, request).done().stats().reused_tokens(), 0);
}

TEST(PrefillServiceTest, WithoutAFileNobodyGetsSizesPerHead) {
  Harness harness;
  v1::PrefillRequest request = TokensRequest(Ids(10));
  request.mutable_selector()->mutable_vertical_slash()->set_per_head(true);
  EXPECT_THAT(RunPrefill(harness, request).status,
              HasCode(grpc::StatusCode::FAILED_PRECONDITION,
                      "started without minference_config"));
}

TEST(PrefillServiceTest, TextIsTokenisedWithABosAtTheStartOnly) {
  Harness harness;
  v1::PrefillRequest request;
  request.set_text("abc");
  EXPECT_EQ(RunPrefill(harness, request).done().num_tokens(), 4);

  CreateSession(harness, "chat");
  request.set_session_id("chat");
  EXPECT_EQ(RunPrefill(harness, request).done().num_tokens(), 4);
  EXPECT_EQ(RunPrefill(harness, request).done().num_tokens(), 7);
}

TEST(PrefillServiceTest, BadRequestsAreNamedAndNothingStarts) {
  Harness harness;
  using Edit = void (*)(v1::PrefillRequest*);
  const struct {
    Edit edit;
    grpc::StatusCode code;
    const char* message;
  } cases[] = {
      {[](v1::PrefillRequest* r) { r->clear_prompt(); },
       grpc::StatusCode::INVALID_ARGUMENT, "prompt: needs tokens or text"},
      {[](v1::PrefillRequest* r) { r->mutable_tokens()->clear_ids(); },
       grpc::StatusCode::INVALID_ARGUMENT, "prompt: 0 tokens"},
      {[](v1::PrefillRequest* r) { r->mutable_tokens()->set_ids(7, 1000); },
       grpc::StatusCode::INVALID_ARGUMENT,
       "tokens.ids[7]: 1000 is not in [0, 1000)"},
      {[](v1::PrefillRequest* r) { r->mutable_tokens()->set_ids(3, -1); },
       grpc::StatusCode::INVALID_ARGUMENT, "tokens.ids[3]: -1"},
      {[](v1::PrefillRequest* r) { *r = TokensRequest(Ids(4097)); },
       grpc::StatusCode::OUT_OF_RANGE, "4097 tokens"},
      {[](v1::PrefillRequest* r) { r->set_priority(101); },
       grpc::StatusCode::INVALID_ARGUMENT, "priority: 101"},
      {[](v1::PrefillRequest* r) { r->set_handle_ttl_ms(-1); },
       grpc::StatusCode::INVALID_ARGUMENT, "handle_ttl_ms: -1"},
      {[](v1::PrefillRequest* r) { r->set_handle_ttl_ms(86400001); },
       grpc::StatusCode::INVALID_ARGUMENT, "handle_ttl_ms: 86400001"},
      {[](v1::PrefillRequest* r) {
         r->set_reuse(static_cast<v1::PrefillRequest::Reuse>(9));
       },
       grpc::StatusCode::INVALID_ARGUMENT, "reuse: 9"},
      {[](v1::PrefillRequest* r) {
         r->mutable_view()->mutable_snap_kv()->set_window(-2);
       },
       grpc::StatusCode::INVALID_ARGUMENT, "view.snap_kv"},
      {[](v1::PrefillRequest* r) {
         r->mutable_selector()->mutable_a_shape()->set_num_initial(-1);
       },
       grpc::StatusCode::INVALID_ARGUMENT, "selector"},
      {[](v1::PrefillRequest* r) { r->set_session_id("no/such"); },
       grpc::StatusCode::INVALID_ARGUMENT, "session_id"},
      {[](v1::PrefillRequest* r) { r->set_session_id(std::string(129, 'x')); },
       grpc::StatusCode::INVALID_ARGUMENT, "129 characters"},
      {[](v1::PrefillRequest* r) { r->set_session_id("unknown"); },
       grpc::StatusCode::NOT_FOUND, "session 'unknown'"}};
  for (const auto& c : cases) {
    v1::PrefillRequest request = TokensRequest(Ids(10));
    c.edit(&request);
    const PrefillAnswer answer = RunPrefill(harness, request);
    EXPECT_THAT(answer.status, HasCode(c.code, c.message));
    EXPECT_TRUE(answer.events.empty()) << c.message;
    EXPECT_EQ(answer.retry_delay_ms, -1);
  }
  EXPECT_EQ(harness.server().handles().size(), 0);
  EXPECT_EQ(harness.cache().stats().num_spans, 0);
}

TEST(PrefillServiceTest, TextWithoutATokenizerIsAPrecondition) {
  Harness::Options options = Harness::Defaults();
  options.with_tokenizer = false;
  Harness harness(options);
  v1::PrefillRequest request;
  request.set_text("abc");
  EXPECT_THAT(RunPrefill(harness, request).status,
              HasCode(grpc::StatusCode::FAILED_PRECONDITION, "text"));
}

TEST(PrefillServiceTest, APromptAboveTheMemoryLimitIsRefusedWithADelay) {
  Harness::Options options = Harness::Defaults();
  options.engine.max_workspace_bytes = 1000;  // 10 tokens at 100 bytes
  Harness harness(options);
  EXPECT_THAT(RunPrefill(harness, TokensRequest(Ids(10))).status,
              HasCode(grpc::StatusCode::OK));
  const PrefillAnswer answer = RunPrefill(harness, TokensRequest(Ids(11)));
  EXPECT_THAT(answer.status,
              HasCode(grpc::StatusCode::RESOURCE_EXHAUSTED, "11 tokens"));
  EXPECT_GE(answer.retry_delay_ms, 100);
}

TEST(PrefillServiceTest, AFullQueueIsRefusedWithADelay) {
  Harness::Options options = Harness::Defaults();
  options.engine.max_queued = 0;
  options.server.max_queued = 0;
  Harness harness(options);
  harness.gate().Close();
  std::thread running([&] { RunPrefill(harness, TokensRequest(Ids(10))); });
  harness.gate().AwaitArrival();
  const PrefillAnswer answer = RunPrefill(harness, TokensRequest(Ids(10)));
  EXPECT_THAT(answer.status,
              HasCode(grpc::StatusCode::RESOURCE_EXHAUSTED, "limit 1"));
  EXPECT_GE(answer.retry_delay_ms, 100);
  harness.gate().Open();
  running.join();
}

TEST(PrefillServiceTest, TooManyHandlesAreRefusedBeforeComputing) {
  Harness::Options options = Harness::Defaults();
  options.server.max_handles = 1;
  Harness harness(options);
  const std::string handle =
      RunPrefill(harness, TokensRequest(Ids(10))).done().handle();
  const PrefillAnswer refused = RunPrefill(harness, TokensRequest(Ids(10)));
  EXPECT_THAT(refused.status,
              HasCode(grpc::StatusCode::RESOURCE_EXHAUSTED, "handles: 1"));
  EXPECT_TRUE(refused.events.empty());
  harness.Advance(absl::Minutes(11));
  EXPECT_THAT(RunPrefill(harness, TokensRequest(Ids(10))).status,
              HasCode(grpc::StatusCode::OK))
      << "an expired handle makes room";
}

TEST(PrefillServiceTest, CancellingStopsWithinALayerAndFreesTheQueue) {
  Harness harness;
  harness.gate().Close();
  grpc::ClientContext context;
  auto reader = harness.prefill().Prefill(&context, TokensRequest(Ids(300)));
  harness.gate().AwaitArrival();  // layer 0 is done
  context.TryCancel();
  v1::PrefillEvent event;
  while (reader->Read(&event)) {
  }
  EXPECT_THAT(reader->Finish(), HasCode(grpc::StatusCode::CANCELLED));
  // The gate stays closed: only the stop token lets the back end go on, and
  // without it this call would wait for ever in the queue.
  harness.gate().AwaitNobody();
  harness.gate().Open();
  EXPECT_THAT(RunPrefill(harness, TokensRequest(Ids(300))).status,
              HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(harness.server().handles().size(), 1) << "only the second one's";
}

TEST(PrefillServiceTest, ADeadlineStopsThePrefill) {
  Harness harness;
  harness.gate().Close();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(100));
  auto reader = harness.prefill().Prefill(&context, TokensRequest(Ids(300)));
  v1::PrefillEvent event;
  while (reader->Read(&event)) {
  }
  EXPECT_THAT(reader->Finish(), HasCode(grpc::StatusCode::DEADLINE_EXCEEDED));
  // Only the stop token lets the back end leave a closed gate.
  harness.gate().AwaitNobody();
}

TEST(PrefillServiceTest, AReaderThatNeverReadsHoldsUpNobody) {
  Harness harness;
  grpc::ClientContext context;
  auto silent = harness.prefill().Prefill(&context, TokensRequest(Ids(300)));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(RunPrefill(harness, TokensRequest(Ids(300, i + 1))).status,
                HasCode(grpc::StatusCode::OK));
  }
  // It reads after all: progress was coalesced, nothing else is lost.
  std::vector<v1::PrefillEvent> events;
  v1::PrefillEvent event;
  while (silent->Read(&event)) events.push_back(event);
  EXPECT_THAT(silent->Finish(), HasCode(grpc::StatusCode::OK));
  ASSERT_FALSE(events.empty());
  EXPECT_TRUE(events.back().has_done());
  EXPECT_TRUE(events.front().has_queued());
}

TEST(PrefillServiceTest, AQueuedRequestSaysHowManyAreAhead) {
  Harness harness;
  harness.gate().Close();
  std::thread running([&] { RunPrefill(harness, TokensRequest(Ids(10))); });
  harness.gate().AwaitArrival();
  grpc::ClientContext context;
  auto reader = harness.prefill().Prefill(&context, TokensRequest(Ids(20)));
  v1::PrefillEvent event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.queued().ahead(), 1);
  harness.gate().Open();
  running.join();
  while (reader->Read(&event)) {
  }
  EXPECT_THAT(reader->Finish(), HasCode(grpc::StatusCode::OK));
}

TEST(PrefillServiceTest, AStoreThatFailsStillAnswersAndServesTheKv) {
  Harness harness;
  harness.FailWrites(true);
  const PrefillAnswer answer = RunPrefill(harness, TokensRequest(Ids(300)));
  ASSERT_THAT(answer.status, HasCode(grpc::StatusCode::OK));
  EXPECT_FALSE(answer.done().persisted());
  EXPECT_THAT(answer.done().store_error(), HasSubstr("no space left"));
  v1::FetchRequest fetch;
  fetch.set_handle(answer.done().handle());
  const FetchAnswer kv = RunFetch(harness, fetch);
  EXPECT_THAT(kv.status, HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(kv.end.total_bytes(), 300 * 3 * 2 * 2 * 64 * 4);

  harness.FailWrites(false);
  EXPECT_TRUE(
      RunPrefill(harness, TokensRequest(Ids(300, 5))).done().persisted())
      << "recovers when space returns";
}

}  // namespace
}  // namespace overture::service
