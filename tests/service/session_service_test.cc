#include "service/session_service.h"

#include <thread>

#include "base/check.h"
#include "tests/service/harness.h"
#include "tests/support/temp_dir.h"

namespace overture::service {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

grpc::Status Get(Harness& harness, const std::string& id, v1::Session* out) {
  grpc::ClientContext context;
  v1::GetSessionRequest request;
  request.set_id(id);
  request.set_include_tokens(true);
  return harness.session().GetSession(&context, request, out);
}

grpc::Status Delete(Harness& harness, const std::string& id) {
  grpc::ClientContext context;
  v1::DeleteSessionRequest request;
  request.set_id(id);
  v1::DeleteSessionResponse response;
  return harness.session().DeleteSession(&context, request, &response);
}

std::vector<std::string> List(Harness& harness) {
  grpc::ClientContext context;
  v1::ListSessionsResponse response;
  EXPECT_TRUE(harness.session().ListSessions(&context, {}, &response).ok());
  std::vector<std::string> ids;
  for (const auto& session : response.sessions()) ids.push_back(session.id());
  return ids;
}

PrefillAnswer Turn(Harness& harness, const std::string& id,
                   const std::vector<int32_t>& ids) {
  v1::PrefillRequest request = TokensRequest(ids);
  request.set_session_id(id);
  return RunPrefill(harness, request);
}

std::vector<int32_t> Joined(std::vector<int32_t> a,
                            const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(SessionServiceTest, ATurnSendsOnlyItsNewTokens) {
  Harness harness;
  CreateSession(harness, "a");
  EXPECT_EQ(Turn(harness, "a", Ids(600)).done().num_tokens(), 600);
  const PrefillAnswer second = Turn(harness, "a", Ids(100, 7));
  EXPECT_EQ(second.done().num_tokens(), 700);
  EXPECT_EQ(second.done().stats().reused_tokens(), 600);
  v1::Session session;
  ASSERT_THAT(Get(harness, "a", &session), HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(session.num_turns(), 2);
  EXPECT_EQ(session.num_tokens(), 700);
  EXPECT_THAT(session.token_ids(),
              ElementsAreArray(Joined(Ids(600), Ids(100, 7))));
  EXPECT_TRUE(session.selector().has_dense());
}

TEST(SessionServiceTest, IdsAreMadeCheckedAndUnique) {
  Harness harness;
  const v1::Session made = CreateSession(harness, "");
  EXPECT_EQ(made.id().size(), 32u);
  CreateSession(harness, "b");
  CreateSession(harness, "a.B-9_");
  const auto create = [&](const std::string& id) {
    grpc::ClientContext context;
    v1::CreateSessionRequest request;
    request.set_id(id);
    v1::Session session;
    return harness.session().CreateSession(&context, request, &session);
  };
  EXPECT_THAT(create("b"), HasCode(grpc::StatusCode::ALREADY_EXISTS, "'b'"));
  for (const std::string& bad :
       {std::string("../b"), std::string("a b"), std::string("a\0b", 3),
        std::string(129, 'a'), std::string("\xc3\xa9")}) {
    EXPECT_FALSE(create(bad).ok());
  }
  EXPECT_THAT(List(harness), ElementsAreArray([&] {
                std::vector<std::string> ids = {"a.B-9_", "b", made.id()};
                std::sort(ids.begin(), ids.end());
                return ids;
              }()));
}

TEST(SessionServiceTest, UnknownSessionsAreNotFoundAndDeletingIsIdempotent) {
  Harness harness;
  v1::Session session;
  EXPECT_THAT(Get(harness, "x", &session),
              HasCode(grpc::StatusCode::NOT_FOUND, "session 'x'"));
  EXPECT_THAT(Delete(harness, "x"), HasCode(grpc::StatusCode::OK));
  CreateSession(harness, "x");
  EXPECT_THAT(Delete(harness, "x"), HasCode(grpc::StatusCode::OK));
  EXPECT_THAT(Delete(harness, "x"), HasCode(grpc::StatusCode::OK));
  EXPECT_THAT(Get(harness, "x", &session),
              HasCode(grpc::StatusCode::NOT_FOUND));
  EXPECT_THAT(Turn(harness, "x", Ids(5)).status,
              HasCode(grpc::StatusCode::NOT_FOUND));
}

TEST(SessionServiceTest, ASessionNeedsTheSizesPerHeadThatItWasMadeWith) {
  const auto sizes = [](int32_t vertical) {
    const std::vector<kernels::VerticalSlashSize> layer = {{vertical, 800}, {}};
    auto made = engine::HeadSizes::Create({layer, layer, layer});
    OVERTURE_CHECK(made.ok());
    return *made;
  };
  const testing::TempDir dir;
  Harness::Options options = Harness::Defaults();
  options.rocksdb_path = dir.Join("kv");
  options.server.limits.head_sizes = sizes(30);
  // The default selector, as a request asks for it.
  options.server.limits.default_selector = {
      .kind = engine::SelectorSpec::Kind::kDynamic, .head_sizes = sizes(30)};
  {
    Harness harness(options);
    EXPECT_TRUE(
        CreateSession(harness, "a").selector().vertical_slash().per_head());
    EXPECT_THAT(Turn(harness, "a", Ids(600)).status,
                HasCode(grpc::StatusCode::OK));
  }
  {
    Harness harness(options);
    const PrefillAnswer second = Turn(harness, "a", Ids(100, 7));
    EXPECT_EQ(second.done().num_tokens(), 700);
    EXPECT_GT(second.done().stats().reused_tokens(), 0);
  }
  options.server.limits.head_sizes = sizes(31);
  options.server.limits.default_selector.head_sizes = sizes(31);
  Harness harness(options);
  EXPECT_THAT(Turn(harness, "a", Ids(100)).status,
              HasCode(grpc::StatusCode::FAILED_PRECONDITION,
                      "session 'a': session record: runs by sizes per head"));
  EXPECT_THAT(Delete(harness, "a"), HasCode(grpc::StatusCode::OK));
  CreateSession(harness, "a");
}

TEST(SessionServiceTest, TheSelectorIsFixedForASessionsLife) {
  Harness harness;
  grpc::ClientContext context;
  v1::CreateSessionRequest create;
  create.set_id("sparse");
  create.mutable_selector()->mutable_a_shape()->set_num_initial(64);
  create.mutable_selector()->mutable_a_shape()->set_num_local(512);
  v1::Session session;
  ASSERT_THAT(harness.session().CreateSession(&context, create, &session),
              HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(session.selector().a_shape().num_local(), 512);
  EXPECT_THAT(
      Turn(harness, "sparse", Ids(10)).done().stats().attention_policy(),
      ::testing::HasSubstr("a_shape"));
  v1::PrefillRequest other = TokensRequest(Ids(10));
  other.set_session_id("sparse");
  other.mutable_selector()->mutable_dense();
  EXPECT_THAT(RunPrefill(harness, other).status,
              HasCode(grpc::StatusCode::INVALID_ARGUMENT, "selector: dense"));
  *other.mutable_selector() = create.selector();
  EXPECT_THAT(RunPrefill(harness, other).status, HasCode(grpc::StatusCode::OK));
}

TEST(SessionServiceTest, OfTwoConcurrentTurnsOneIsAborted) {
  Harness harness;
  CreateSession(harness, "a");
  harness.gate().Close();
  PrefillAnswer first;
  PrefillAnswer second;
  std::thread a([&] { first = Turn(harness, "a", Ids(10)); });
  harness.gate().AwaitArrival();
  // The second one begins from the same history: it is queued behind the first
  // before the gate opens.
  std::thread b([&] {
    grpc::ClientContext context;
    v1::PrefillRequest request = TokensRequest(Ids(10, 50));
    request.set_session_id("a");
    auto reader = harness.prefill().Prefill(&context, request);
    v1::PrefillEvent event;
    ASSERT_TRUE(reader->Read(&event));
    ASSERT_TRUE(event.has_queued());
    harness.gate().Open();
    while (reader->Read(&event)) {
    }
    second.status = reader->Finish();
  });
  a.join();
  b.join();
  EXPECT_THAT(first.status, HasCode(grpc::StatusCode::OK));
  EXPECT_THAT(second.status, HasCode(grpc::StatusCode::ABORTED));
  v1::Session session;
  ASSERT_THAT(Get(harness, "a", &session), HasCode(grpc::StatusCode::OK));
  EXPECT_THAT(session.token_ids(), ElementsAreArray(Ids(10)));
  EXPECT_EQ(session.num_turns(), 1);
}

TEST(SessionServiceTest, DeletingDuringATurnAbortsItAndStaysDeleted) {
  Harness harness;
  CreateSession(harness, "a");
  harness.gate().Close();
  PrefillAnswer turn;
  std::thread running([&] { turn = Turn(harness, "a", Ids(10)); });
  harness.gate().AwaitArrival();
  EXPECT_THAT(Delete(harness, "a"), HasCode(grpc::StatusCode::OK));
  harness.gate().Open();
  running.join();
  EXPECT_THAT(turn.status, HasCode(grpc::StatusCode::ABORTED));
  v1::Session session;
  EXPECT_THAT(Get(harness, "a", &session),
              HasCode(grpc::StatusCode::NOT_FOUND));
}

TEST(SessionServiceTest, ASessionMadeAgainUnderItsNameIsAnotherOne) {
  Harness harness;
  CreateSession(harness, "a");
  harness.gate().Close();
  PrefillAnswer turn;
  std::thread running([&] { turn = Turn(harness, "a", Ids(10)); });
  harness.gate().AwaitArrival();
  EXPECT_THAT(Delete(harness, "a"), HasCode(grpc::StatusCode::OK));
  CreateSession(harness, "a");
  harness.gate().Open();
  running.join();
  EXPECT_THAT(turn.status, HasCode(grpc::StatusCode::ABORTED));
  v1::Session session;
  ASSERT_THAT(Get(harness, "a", &session), HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(session.num_tokens(), 0);
}

TEST(SessionServiceTest, AFailedTurnLeavesTheHistoryAlone) {
  Harness harness;
  CreateSession(harness, "a");
  Turn(harness, "a", Ids(20));
  EXPECT_FALSE(Turn(harness, "a", {5000}).status.ok());
  EXPECT_THAT(Turn(harness, "a", Ids(4090)).status,
              HasCode(grpc::StatusCode::OUT_OF_RANGE, "4110 tokens"));
  v1::Session session;
  ASSERT_THAT(Get(harness, "a", &session), HasCode(grpc::StatusCode::OK));
  EXPECT_THAT(session.token_ids(), ElementsAreArray(Ids(20)));
}

TEST(SessionServiceTest, SessionsSurviveARestart) {
  testing::TempDir dir;
  Harness::Options options = Harness::Defaults();
  options.rocksdb_path = dir.Join("kv");
  {
    Harness harness(options);
    CreateSession(harness, "a");
    CreateSession(harness, "b");
    Turn(harness, "a", Ids(600));
  }
  Harness harness(options);
  EXPECT_THAT(List(harness), ElementsAre("a", "b"));
  const PrefillAnswer turn = Turn(harness, "a", Ids(100, 7));
  ASSERT_THAT(turn.status, HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(turn.done().num_tokens(), 700);
  EXPECT_EQ(turn.done().stats().reused_tokens(), 600);
}

TEST(SessionServiceTest, ATurnThatCannotBeStoredIsHistoryInMemory) {
  Harness harness;
  CreateSession(harness, "a");
  harness.FailWrites(true);
  const PrefillAnswer first = Turn(harness, "a", Ids(300));
  ASSERT_THAT(first.status, HasCode(grpc::StatusCode::OK));
  EXPECT_FALSE(first.done().persisted());
  v1::Session session;
  ASSERT_THAT(Get(harness, "a", &session), HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(session.num_tokens(), 300);

  harness.FailWrites(false);
  const PrefillAnswer second = Turn(harness, "a", Ids(10, 7));
  ASSERT_THAT(second.status, HasCode(grpc::StatusCode::OK));
  EXPECT_TRUE(second.done().persisted());
  EXPECT_EQ(second.done().num_tokens(), 310);
}

TEST(SessionServiceTest, HistoriesInMemoryAreBounded) {
  Harness::Options options = Harness::Defaults();
  options.server.max_unstored_session_bytes = 1000;  // about 230 tokens
  Harness harness(options);
  CreateSession(harness, "a");
  harness.FailWrites(true);
  EXPECT_THAT(Turn(harness, "a", Ids(300)).status,
              HasCode(grpc::StatusCode::RESOURCE_EXHAUSTED, "limit of 1000"));
  EXPECT_THAT(Turn(harness, "a", Ids(100)).status,
              HasCode(grpc::StatusCode::OK));
}

TEST(SessionServiceTest, ANoStoreTurnIsStillHistory) {
  Harness harness;
  CreateSession(harness, "a");
  v1::PrefillRequest request = TokensRequest(Ids(300));
  request.set_session_id("a");
  request.set_no_store(true);
  ASSERT_THAT(RunPrefill(harness, request).status,
              HasCode(grpc::StatusCode::OK));
  v1::Session session;
  ASSERT_THAT(Get(harness, "a", &session), HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(session.num_tokens(), 300);
  EXPECT_TRUE(harness.cache().GetSession("a").ok());
}

}  // namespace
}  // namespace overture::service
