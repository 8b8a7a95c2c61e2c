#include "service/server.h"

#include <grpcpp/generic/generic_stub.h>

#include <thread>

#include "tests/service/harness.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::service {
namespace {

// grpc.health.v1 by hand: a request is one string field, an answer one enum;
// its generated code is not installed everywhere.
int Health(Harness& harness, const std::string& name) {
  std::string bytes;
  if (!name.empty()) {
    bytes = std::string("\x0a") + static_cast<char>(name.size()) + name;
  }
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(
      harness.channel());
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check",
                                    request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return -static_cast<int>(status.error_code());
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(response.Dump(&slices).ok());
  std::string out;
  for (const grpc::Slice& s : slices) {
    out.append(reinterpret_cast<const char*>(s.begin()), s.size());
  }
  return out.size() == 2 ? out[1] : 0;
}
constexpr int kServing = 1;
constexpr int kNotServing = 2;

v1::ServerInfo Info(Harness& harness) {
  grpc::ClientContext context;
  v1::ServerInfo info;
  EXPECT_THAT(harness.admin().GetServerInfo(&context, {}, &info),
              HasCode(grpc::StatusCode::OK));
  return info;
}

// gRPC's in-process transport drops calls when a server begins to shut down;
// HTTP/2 lets them end.
Harness::Options OverTcp() {
  Harness::Options options = Harness::Defaults();
  options.server.listen = {"127.0.0.1:0"};
  return options;
}

TEST(ServerTest, EveryServiceHasAHealthName) {
  Harness harness;
  for (const char* name :
       {"", "overture.v1.PrefillService", "overture.v1.KvCacheService",
        "overture.v1.SessionService", "overture.v1.AdminService",
        "overture.kv_writes"}) {
    EXPECT_EQ(Health(harness, name), kServing) << name;
  }
  EXPECT_EQ(Health(harness, "unheard.of"),
            -static_cast<int>(grpc::StatusCode::NOT_FOUND));
}

TEST(ServerTest, AFailingDiskTurnsOnlyKvWritesUnhealthy) {
  Harness harness;
  harness.FailWrites(true);
  RunPrefill(harness, TokensRequest(Ids(300)));
  EXPECT_EQ(Health(harness, "overture.kv_writes"), kNotServing);
  EXPECT_EQ(Health(harness, ""), kServing);
  EXPECT_EQ(Health(harness, "overture.v1.PrefillService"), kServing);
  harness.FailWrites(false);
  RunPrefill(harness, TokensRequest(Ids(300, 9)));
  EXPECT_EQ(Health(harness, "overture.kv_writes"), kServing);
}

TEST(ServerTest, AShutdownLetsCallsUnderWayFinishAndRefusesNewOnes) {
  Harness harness(OverTcp());
  harness.gate().Close();
  PrefillAnswer under_way;
  std::thread call(
      [&] { under_way = RunPrefill(harness, TokensRequest(Ids(300))); });
  harness.gate().AwaitArrival();
  bool ended = false;
  std::thread shutdown(
      [&] { ended = harness.server().Shutdown(absl::Minutes(1)); });
  // The drain has begun once health says so.
  while (Health(harness, "") == kServing) std::this_thread::yield();
  PrefillAnswer refused;
  do {
    // Health turns first, the gate within microseconds of it.
    refused = RunPrefill(harness, TokensRequest({}));
  } while (refused.status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status,
              HasCode(grpc::StatusCode::UNAVAILABLE, "shutting down"));
  harness.gate().Open();
  call.join();
  shutdown.join();
  EXPECT_TRUE(ended);
  EXPECT_THAT(under_way.status, HasCode(grpc::StatusCode::OK));
  EXPECT_TRUE(under_way.events.back().has_done());
}

TEST(ServerTest, AShutdownCancelsWhatOutlivesItsLimit) {
  Harness harness(OverTcp());
  const PrefillAnswer done = RunPrefill(harness, TokensRequest(Ids(1500)));
  v1::FetchRequest fetch;
  fetch.set_handle(done.done().handle());
  grpc::ClientContext fetch_context;
  auto silent = harness.kv().Fetch(&fetch_context, fetch);
  v1::KvChunk chunk;
  ASSERT_TRUE(silent->Read(&chunk));

  harness.gate().Close();
  PrefillAnswer held;
  std::thread call(
      [&] { held = RunPrefill(harness, TokensRequest(Ids(300, 3))); });
  harness.gate().AwaitArrival();
  // The gate stays closed: only cancellation ends the prefill.
  EXPECT_FALSE(harness.server().Shutdown(absl::Milliseconds(10)));
  call.join();
  EXPECT_FALSE(held.status.ok());
  EXPECT_EQ(harness.cache().stats().live_leases, 0);
  while (silent->Read(&chunk)) {
  }
  // Cut off, unless the sockets' buffers had taken all of it.
  silent->Finish();
}

TEST(ServerTest, ListensOnAFreePortAndOnAUnixSocket) {
  testing::TempDir dir;
  Harness::Options options = Harness::Defaults();
  const std::string socket = "unix:" + dir.Join("s");
  options.server.listen = {"127.0.0.1:0", socket};
  Harness harness(options);
  const int port = harness.server().ports()[0];
  EXPECT_GT(port, 0);
  for (const std::string& address :
       {"127.0.0.1:" + std::to_string(port), socket}) {
    auto stub = v1::AdminService::NewStub(
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::ServerInfo info;
    EXPECT_THAT(stub->GetServerInfo(&context, {}, &info),
                HasCode(grpc::StatusCode::OK))
        << address;
  }
}

TEST(ServerTest, AnAddressInUseIsNamed) {
  Harness::Options options = Harness::Defaults();
  options.server.listen = {"127.0.0.1:0"};
  Harness first(options);
  const std::string address =
      "127.0.0.1:" + std::to_string(first.server().ports()[0]);
  ServerOptions server;
  server.listen = {address};
  testing::FakeBackend::Options backend_options;
  auto backend = std::make_unique<testing::FakeBackend>(backend_options);
  const testing::FakeModelFiles files(backend->config());
  auto engine =
      engine::Engine::Create({}, files, {}, std::move(backend), &first.cache());
  ASSERT_TRUE(engine.ok());
  EXPECT_THAT(
      Server::Start(server, {.engine = engine->get(), .cache = &first.cache()}),
      testing::StatusIs(absl::StatusCode::kUnavailable,
                        ::testing::HasSubstr(address)));
}

TEST(ServerTest, APromptOfAMillionTokensIsJudgedNotCutOff) {
  Harness::Options options = Harness::Defaults();
  options.backend.max_positions = 1 << 20;
  options.engine.max_workspace_bytes = 1 << 20;  // refused, but with a reason
  options.server.listen = {"127.0.0.1:0"};
  Harness harness(options);
  auto stub = v1::PrefillService::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(harness.server().ports()[0]),
      grpc::InsecureChannelCredentials()));
  // Ids of two bytes each on the wire would still fit gRPC's default of 4 MiB;
  // negative ones take ten, the most a client can send per id.
  const v1::PrefillRequest request =
      TokensRequest(std::vector<int32_t>(500000, -1));
  ASSERT_GT(request.ByteSizeLong(), size_t{4} << 20);
  grpc::ClientContext context;
  auto reader = stub->Prefill(&context, request);
  v1::PrefillEvent event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_THAT(reader->Finish(),
              HasCode(grpc::StatusCode::INVALID_ARGUMENT, "tokens.ids[0]"));
}

TEST(ServerTest, InfoTellsModelLimitsAndState) {
  Harness harness;
  RunPrefill(harness, TokensRequest(Ids(600)));
  const v1::ServerInfo info = Info(harness);
  EXPECT_NE(info.version(), "");
  EXPECT_EQ(info.model().name(), "fake");
  EXPECT_EQ(info.model().weights_digest(), std::string(32, 0x5a));
  EXPECT_EQ(info.model().vocab_size(), 1000);
  EXPECT_EQ(info.model().compute_dtype(), "f32");
  EXPECT_EQ(info.model().backend(), "fake");
  EXPECT_THAT(info.model().eos_token_ids(), ::testing::ElementsAre(2));
  EXPECT_EQ(info.max_prompt_tokens(), 4096);
  EXPECT_EQ(info.max_chunk_bytes(), (4 << 20) - (64 << 10));
  EXPECT_EQ(info.default_handle_ttl_ms(), 600000);
  EXPECT_TRUE(info.default_selector().has_dense());
  EXPECT_EQ(info.live_handles(), 1);
  EXPECT_EQ(info.running_requests(), 0);
  EXPECT_EQ(info.cache().num_spans(), 3);
  EXPECT_EQ(info.head_sizes_digest(), "");
  EXPECT_EQ(info.numerics(), "fake");
  EXPECT_EQ(info.unhealthy(), "");
}

TEST(ServerTest, ALostDeviceFailsItsPrefillAndEndsPrefillsAlone) {
  Harness harness;
  const PrefillAnswer before = RunPrefill(harness, TokensRequest(Ids(600)));
  CreateSession(harness, "s");
  ASSERT_THAT(before.status, HasCode(grpc::StatusCode::OK));
  harness.gate().Close();
  PrefillAnswer meets, waits;
  std::thread first([&] {
    v1::PrefillRequest request = TokensRequest(Ids(600, 7));
    request.set_session_id("s");
    meets = RunPrefill(harness, request);
  });
  harness.gate().AwaitArrival();
  std::thread second(
      [&] { waits = RunPrefill(harness, TokensRequest(Ids(300, 9))); });
  while (Info(harness).queued_requests() < 1) std::this_thread::yield();
  EXPECT_EQ(Health(harness, ""), kServing);
  harness.LoseDevice();
  harness.gate().Open();
  first.join();
  second.join();

  EXPECT_THAT(meets.status, HasCode(grpc::StatusCode::INTERNAL, "bad address"));
  EXPECT_THAT(waits.status, HasCode(grpc::StatusCode::UNAVAILABLE,
                                    "the fake device is lost"));
  EXPECT_THAT(
      RunPrefill(harness, TokensRequest(Ids(600))).status,
      HasCode(grpc::StatusCode::UNAVAILABLE, "the fake device is lost"));
  EXPECT_EQ(Health(harness, ""), kNotServing);
  EXPECT_EQ(Health(harness, "overture.v1.PrefillService"), kNotServing);
  for (const char* name :
       {"overture.v1.KvCacheService", "overture.v1.SessionService",
        "overture.v1.AdminService", kKvWritesHealthName}) {
    EXPECT_EQ(Health(harness, name), kServing) << name;
  }

  const v1::ServerInfo info = Info(harness);
  EXPECT_EQ(info.unhealthy(), "the fake device is lost");
  // What was stored is served on; of the prefill that failed nothing was, and
  // its session has not moved.
  v1::FetchRequest fetch;
  fetch.set_handle(before.done().handle());
  EXPECT_THAT(RunFetch(harness, fetch).status, HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(info.cache().num_spans(), 3);
  EXPECT_EQ(info.live_handles(), 1);
  grpc::ClientContext session_call;
  v1::GetSessionRequest session_request;
  session_request.set_id("s");
  v1::Session session;
  ASSERT_THAT(
      harness.session().GetSession(&session_call, session_request, &session),
      HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(session.num_turns(), 0);
}

TEST(ServerTest, InfoNamesTheSizesPerHead) {
  Harness::Options options = Harness::Defaults();
  auto& limits = options.server.limits;
  OVERTURE_ASSERT_OK_AND_ASSIGN(limits.head_sizes,
                                engine::HeadSizes::Create({{{30, 800}}}));
  limits.default_selector.kind = engine::SelectorSpec::Kind::kDynamic;
  limits.default_selector.head_sizes = limits.head_sizes;
  Harness harness(options);
  const v1::ServerInfo info = Info(harness);
  EXPECT_EQ(info.head_sizes_digest(),
            limits.head_sizes.digest().AsStringView());
  EXPECT_TRUE(info.default_selector().vertical_slash().per_head());
}

TEST(ServerTest, TextAndIdsGoBothWays) {
  Harness harness;
  grpc::ClientContext to_ids;
  v1::TokenizeRequest tokenize;
  tokenize.set_text("hi");
  tokenize.set_add_special_tokens(true);
  v1::TokenizeResponse ids;
  ASSERT_THAT(harness.admin().Tokenize(&to_ids, tokenize, &ids),
              HasCode(grpc::StatusCode::OK));
  EXPECT_THAT(ids.ids(), ::testing::ElementsAre(256, 'h', 'i'));
  const auto detokenize = [&](int32_t extra, v1::DetokenizeResponse* text) {
    grpc::ClientContext context;
    v1::DetokenizeRequest request;
    *request.mutable_ids() = ids.ids();
    request.add_ids(extra);
    return harness.admin().Detokenize(&context, request, text);
  };
  v1::DetokenizeResponse text;
  EXPECT_THAT(detokenize('!', &text), HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(text.text(), "hi!");
  EXPECT_THAT(detokenize(999, &text),
              HasCode(grpc::StatusCode::OUT_OF_RANGE, "999"));

  Harness::Options options = Harness::Defaults();
  options.with_tokenizer = false;
  Harness without(options);
  grpc::ClientContext context;
  EXPECT_THAT(without.admin().Tokenize(&context, tokenize, &ids),
              HasCode(grpc::StatusCode::FAILED_PRECONDITION));
}

}  // namespace
}  // namespace overture::service
