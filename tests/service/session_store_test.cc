#include "service/session_store.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::service {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

class SessionStoreTest : public ::testing::Test {
 protected:
  SessionStoreTest() {
    cache::Stores stores = cache::OpenMemoryStores();
    cache_ =
        cache::KvCache::Open({.max_bytes = 1 << 20}, std::move(stores.meta),
                             std::move(stores.payload))
            .value();
    sessions_ = std::make_unique<SessionStore>(
        cache_.get(), SessionStore::Options{.max_sessions = 3,
                                            .now = [this] { return now_; }});
  }
  std::unique_ptr<SessionStore::Turn> Begin(const std::string& id) {
    return sessions_->Begin(id).value();
  }
  // What the engine does between a claim and its answer.
  void Commit(const std::string& id, const std::string& bytes) {
    ASSERT_THAT(cache_->PutSession(id, bytes), IsOk());
  }
  absl::Time now_ = absl::FromUnixMillis(1000);
  std::unique_ptr<cache::KvCache> cache_;
  std::unique_ptr<SessionStore> sessions_;
};

TEST_F(SessionStoreTest, ATurnBecomesTheHistory) {
  ASSERT_THAT(sessions_->Create("a", {}), IsOk());
  const auto turn = Begin("a");
  now_ += absl::Seconds(1);
  const std::string bytes = turn->Bytes({1, 2, 3});
  ASSERT_TRUE(turn->Claim());
  Commit("a", bytes);
  EXPECT_THAT(turn->End(), IsOk());
  OVERTURE_ASSERT_OK_AND_ASSIGN(const SessionRecord record,
                                sessions_->Get("a"));
  EXPECT_THAT(record.tokens, ::testing::ElementsAre(1, 2, 3));
  EXPECT_EQ(record.num_turns, 1);
  EXPECT_EQ(record.created_unix_ms, 1000);
  EXPECT_EQ(record.updated_unix_ms, 2000);
}

TEST_F(SessionStoreTest, TheSecondToCommitIsAborted) {
  ASSERT_THAT(sessions_->Create("a", {}), IsOk());
  const auto first = Begin("a");
  const auto second = Begin("a");
  const std::string bytes = first->Bytes({1});
  second->Bytes({2});
  ASSERT_TRUE(first->Claim());
  EXPECT_TRUE(first->Claim()) << "again is harmless";
  Commit("a", bytes);
  EXPECT_THAT(first->End(), IsOk());
  EXPECT_FALSE(second->Claim());
  EXPECT_THAT(second->End(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("session 'a'")));
}

TEST_F(SessionStoreTest, AClaimThatCommitsNothingLetsTheNextOneWin) {
  ASSERT_THAT(sessions_->Create("a", {}), IsOk());
  auto failed = Begin("a");
  const auto next = Begin("a");
  failed->Bytes({1});
  const std::string bytes = next->Bytes({2});
  ASSERT_TRUE(failed->Claim());
  // Waits for the claim under way, whichever way it ends.
  std::thread waits([&] { EXPECT_TRUE(next->Claim()); });
  failed.reset();
  waits.join();
  Commit("a", bytes);
  EXPECT_THAT(next->End(), IsOk());
}

TEST_F(SessionStoreTest, AFailureAfterTheCommitCountsAsCommitted) {
  ASSERT_THAT(sessions_->Create("a", {}), IsOk());
  auto turn = Begin("a");
  const auto late = Begin("a");
  const std::string bytes = turn->Bytes({1});
  late->Bytes({2});
  ASSERT_TRUE(turn->Claim());
  Commit("a", bytes);
  turn.reset();  // without End
  EXPECT_FALSE(late->Claim());
  EXPECT_EQ(sessions_->Get("a")->num_turns, 1);
}

TEST_F(SessionStoreTest, DeletingWaitsForACommitUnderWay) {
  ASSERT_THAT(sessions_->Create("a", {}), IsOk());
  const auto turn = Begin("a");
  const std::string bytes = turn->Bytes({1});
  ASSERT_TRUE(turn->Claim());
  std::thread deletes([&] { EXPECT_THAT(sessions_->Delete("a"), IsOk()); });
  Commit("a", bytes);
  EXPECT_THAT(turn->End(), IsOk()) << "the turn came first";
  deletes.join();
  EXPECT_THAT(sessions_->Get("a"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(cache_->GetSession("a"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SessionStoreTest, ADamagedRecordIsDataLossUntilDeleted) {
  ASSERT_THAT(sessions_->Create("a", {}), IsOk());
  Commit("a", "not a record");
  EXPECT_THAT(sessions_->Get("a"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("session 'a'")));
  EXPECT_THAT(sessions_->Begin("a"), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(sessions_->Create("a", {}),
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(sessions_->Delete("a"), IsOk());
  EXPECT_THAT(sessions_->Create("a", {}), IsOk());
}

TEST_F(SessionStoreTest, TheNumberOfSessionsIsBounded) {
  for (const char* id : {"a", "b", ""}) {
    ASSERT_THAT(sessions_->Create(id, {}), IsOk());
  }
  EXPECT_EQ(sessions_->List().size(), 3u);
  EXPECT_THAT(
      sessions_->Create("d", {}),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("limit 3")));
  EXPECT_THAT(sessions_->Delete("a"), IsOk());
  EXPECT_THAT(sessions_->Create("d", {}), IsOk());
}

}  // namespace
}  // namespace overture::service
