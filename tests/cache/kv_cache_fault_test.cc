// What a full, slow or failing medium does to the cache: never to the caller.
#include <memory>
#include <string>
#include <utility>

#include "cache/kv_cache.h"
#include "cache/record_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache/cache_test_util.h"
#include "tests/cache/faulty_store.h"
#include "tests/support/status_matchers.h"

namespace overture::cache {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class KvCacheFaultTest : public ::testing::Test {
 protected:
  KvCacheFaultTest() { Open({.max_bytes = int64_t{64} << 20}); }
  ~KvCacheFaultTest() override { faults_.Stall(false); }

  void Open(const KvCache::Options& options) {
    Stores stores = OpenMemoryStores();
    auto payload = std::make_unique<FaultyPayloadStore>(
        std::move(stores.payload), &faults_);
    payload_ = payload.get();
    auto cache = KvCache::Open(
        options,
        std::make_unique<FaultyMetaStore>(std::move(stores.meta), &faults_),
        std::move(payload));
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }

  // Checks that every record of the prompt's spans reads back clean, found or
  // not.
  absl::Status CheckSpans(absl::Span<const int32_t> tokens) {
    std::vector<SpanUse> uses;
    for (const SpanInfo& span : PlanSpans(policy_, {}, tokens)) {
      uses.push_back({span, span.num_tokens});
    }
    return CheckCanary(*cache_, policy_, uses, tokens);
  }

  const ChainPolicy policy_ = DensePolicy();
  Faults faults_;
  std::unique_ptr<KvCache> cache_;
  FaultyPayloadStore* payload_ = nullptr;
};

TEST_F(KvCacheFaultTest, AFullDiskAtAnyPutDropsTheWriteAndKeepsItReadable) {
  // 600 tokens are 3 spans of one block, 3 layers: 9 puts.
  for (int64_t nth = 0; nth < 9; ++nth) {
    SCOPED_TRACE(nth);
    const auto tokens = Prompt(nth, 600);
    faults_.puts_left = nth;
    const KvCache::Stats before = cache_->stats();
    {
      const CommitResult result = Store(*cache_, policy_, tokens);
      EXPECT_FALSE(result.persisted);
      EXPECT_TRUE(result.readable);
      EXPECT_THAT(result.status,
                  StatusIs(absl::StatusCode::kResourceExhausted));
      EXPECT_EQ(cache_->stats().dropped_writes, before.dropped_writes + 1);
      EXPECT_EQ(cache_->stats().num_spans, before.num_spans);
      // Found by nobody, read by those who hold the lease.
      EXPECT_THAT(cache_->Lookup(policy_, tokens, 600), IsEmpty());
      OVERTURE_EXPECT_OK(CheckSpans(tokens));
    }
    EXPECT_THAT(CheckSpans(tokens), StatusIs(absl::StatusCode::kNotFound));
    EXPECT_EQ(cache_->stats().memory_bytes, 0);

    // Space is back: the next request stores, and so does the same one.
    faults_.puts_left = -1;
    EXPECT_TRUE(Store(*cache_, policy_, Prompt(100 + nth, 300)).persisted);
    EXPECT_TRUE(Store(*cache_, policy_, tokens).persisted);
    OVERTURE_EXPECT_OK(CheckSpans(tokens));
  }
}

TEST_F(KvCacheFaultTest, ADroppedWriteLeavesNoPayload) {
  faults_.puts_left = 4;
  EXPECT_FALSE(Store(*cache_, policy_, Prompt(1, 600)).persisted);
  faults_.puts_left = -1;
  // Waits for what was queued before it, the clean-up included.
  EXPECT_TRUE(Store(*cache_, policy_, Prompt(2, 300)).persisted);
  const KvCache::Stats stats = cache_->stats();
  EXPECT_EQ(stats.physical_bytes, stats.stored_bytes);
}

TEST_F(KvCacheFaultTest, AFailedFlushDropsTheWriteAndKeepsItReadable) {
  const auto tokens = Prompt(1, 600);
  faults_.fail_flush = true;
  {
    const CommitResult result = Store(*cache_, policy_, tokens);
    EXPECT_FALSE(result.persisted);
    EXPECT_TRUE(result.readable);
    EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kUnavailable));
    OVERTURE_EXPECT_OK(CheckSpans(tokens));
  }
  faults_.fail_flush = false;
  EXPECT_TRUE(Store(*cache_, policy_, tokens).persisted);
}

TEST_F(KvCacheFaultTest, AFailedMetadataCommitPublishesNothing) {
  const auto tokens = Prompt(1, 600);
  faults_.fail_commit = true;
  {
    const CommitResult result = Store(*cache_, policy_, tokens);
    EXPECT_FALSE(result.persisted);
    EXPECT_TRUE(result.readable);
    EXPECT_THAT(cache_->Lookup(policy_, tokens, 600), IsEmpty());
    OVERTURE_EXPECT_OK(CheckSpans(tokens));
    EXPECT_THAT(cache_->PutSession("s", "x"),
                StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_THAT(cache_->ListSessions(), IsEmpty());
  }
  faults_.fail_commit = false;
  EXPECT_TRUE(Store(*cache_, policy_, tokens).persisted);
  OVERTURE_EXPECT_OK(CheckSpans(tokens));
}

TEST_F(KvCacheFaultTest, ASessionSurvivesThoughItsSpansWereDropped) {
  const auto tokens = Prompt(1, 300);
  faults_.puts_left = 0;
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto writer, cache_->NewWriter(policy_, PlanSpans(policy_, {}, tokens)));
  for (int32_t layer = 0; layer < 3; ++layer) {
    const CanaryLayer kv(policy_.layout, tokens, layer);
    writer->PutLayer(layer, kv.view());
  }
  const CommitResult result =
      writer->Commit(KvCache::Writer::SessionUpdate{"chat", "turn 1"});
  EXPECT_FALSE(result.persisted);
  EXPECT_TRUE(result.session_persisted);
  OVERTURE_EXPECT_OK(cache_->GetSession("chat"));
}

TEST_F(KvCacheFaultTest, AStalledDiskNeverBlocksAPrefill) {
  // The queue holds 20 of the 18 + 18 records of two writes.
  Open({.max_bytes = int64_t{64} << 20,
        .max_queued_bytes = 20 * RecordBytes(kTinyLayout, 256)});
  faults_.Stall(true);
  const auto first = Prompt(1, 6 * 256), second = Prompt(2, 6 * 256);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto writer, cache_->NewWriter(policy_, PlanSpans(policy_, {}, first)));
  for (int32_t layer = 0; layer < 3; ++layer) {
    const CanaryLayer kv(policy_.layout, first, layer);
    writer->PutLayer(layer, kv.view());
  }
  {
    // No room for all of it: dropped, and its commit does not wait.
    const CommitResult dropped = Store(*cache_, policy_, second);
    EXPECT_FALSE(dropped.persisted);
    EXPECT_TRUE(dropped.readable);
    EXPECT_THAT(dropped.status, StatusIs(absl::StatusCode::kResourceExhausted,
                                         HasSubstr("max_queued_bytes")));
    EXPECT_EQ(cache_->stats().dropped_writes, 1);
    OVERTURE_EXPECT_OK(CheckSpans(second));
  }
  faults_.Stall(false);
  EXPECT_TRUE(writer->Commit({}).persisted);
  EXPECT_TRUE(Store(*cache_, policy_, second).persisted);
}

TEST_F(KvCacheFaultTest, MemoryForUnwrittenRecordsIsBounded) {
  // A third of the write.
  const int64_t limit = 3 * RecordBytes(kTinyLayout, 256);
  Open({.max_bytes = int64_t{64} << 20, .max_memory_bytes = limit});
  const auto tokens = Prompt(1, 3 * 256);
  faults_.puts_left = 0;
  const CommitResult result = Store(*cache_, policy_, tokens);
  EXPECT_FALSE(result.persisted);
  EXPECT_FALSE(result.readable);
  EXPECT_EQ(cache_->stats().memory_bytes, 0);
  EXPECT_THAT(CheckSpans(tokens), StatusIs(absl::StatusCode::kNotFound));
  // A write that succeeds needs no such memory.
  faults_.puts_left = -1;
  const CommitResult stored = Store(*cache_, policy_, tokens);
  EXPECT_TRUE(stored.persisted);
  EXPECT_TRUE(stored.readable);
}

TEST_F(KvCacheFaultTest, HeldSpansCanBePinnedAndGoWithTheLastLease) {
  const auto tokens = Prompt(1, 200);
  const auto spans = PlanSpans(policy_, {}, tokens);
  faults_.puts_left = 0;
  CommitResult result = Store(*cache_, policy_, tokens);
  OVERTURE_ASSERT_OK_AND_ASSIGN(Lease pin, cache_->Pin({spans[0].key}));
  result.lease.Release();
  OVERTURE_EXPECT_OK(CheckSpans(tokens));
  EXPECT_GT(cache_->stats().memory_bytes, 0);
  pin.Release();
  EXPECT_THAT(cache_->Pin({spans[0].key}),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(cache_->stats().memory_bytes, 0);
}

TEST_F(KvCacheFaultTest, AMissingRecordCostsItsSpanAndWhatHangsBelow) {
  const auto tokens = Prompt(1, 900);
  ASSERT_TRUE(Store(*cache_, policy_, tokens).persisted);
  const auto spans = cache_->Lookup(policy_, tokens, 900);
  // Put ids ascend from the cache's first; the second span has the second.
  std::vector<std::string> keys;
  OVERTURE_ASSERT_OK(payload_->ForEachKey(
      [&](absl::string_view key) { keys.emplace_back(key); }));
  // 3 records per span: drop one of the second span's.
  OVERTURE_ASSERT_OK(payload_->DeleteRange(keys[4], keys[5]));
  EXPECT_THAT(CheckCanary(*cache_, policy_, spans, tokens),
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(cache_->stats().damaged_records, 1);
  const PrefixMatch match = cache_->Match(policy_, tokens, 900);
  EXPECT_EQ(match.num_tokens, 256);
  OVERTURE_EXPECT_OK(CheckCanary(*cache_, policy_, match.spans, tokens));
  // Recomputed once, it is whole again.
  EXPECT_TRUE(Store(*cache_, policy_, tokens, match).persisted);
  EXPECT_EQ(cache_->Match(policy_, tokens, 900).num_tokens, 900);
}

TEST_F(KvCacheFaultTest, AWriteWhoseParentWasLostIsNotPublished) {
  const auto tokens = Prompt(1, 600);
  ASSERT_TRUE(Store(*cache_, policy_, absl::MakeConstSpan(tokens).first(512))
                  .persisted);
  const PrefixMatch match = cache_->Match(policy_, tokens, 536);
  ASSERT_EQ(match.num_tokens, 512);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto writer,
      cache_->NewWriter(policy_, PlanSpans(policy_, match.spans, tokens)));
  for (int32_t layer = 0; layer < 3; ++layer) {
    const CanaryLayer kv(policy_.layout, tokens, layer);
    writer->PutLayer(layer, kv.view());
  }
  // The prefix is found damaged before the write commits.
  OVERTURE_ASSERT_OK(payload_->DeleteRange("", std::string(16, '\xff')));
  EXPECT_THAT(CheckCanary(*cache_, policy_, match.spans, tokens),
              StatusIs(absl::StatusCode::kDataLoss));
  const CommitResult result = writer->Commit({});
  EXPECT_FALSE(result.persisted);
  EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kAborted));
  EXPECT_TRUE(result.readable);
  EXPECT_EQ(cache_->stats().num_spans, 0);
}

TEST_F(KvCacheFaultTest, ARemovalThatFailedIsTriedAgain) {
  Open({.max_bytes = 100 * RecordBytes(kTinyLayout, 256)});
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(Store(*cache_, policy_, Prompt(i, 6 * 256)).persisted);
  }
  // The sixth needs room. Its eviction cannot be made durable.
  faults_.fail_commit = true;
  EXPECT_FALSE(Store(*cache_, policy_, Prompt(5, 6 * 256)).persisted);
  faults_.fail_commit = false;
  for (uint64_t i = 6; i < 16; ++i) {
    EXPECT_TRUE(Store(*cache_, policy_, Prompt(i, 6 * 256)).persisted);
  }
  const KvCache::Stats stats = cache_->stats();
  EXPECT_EQ(stats.physical_bytes, stats.stored_bytes);
}

}  // namespace
}  // namespace overture::cache
