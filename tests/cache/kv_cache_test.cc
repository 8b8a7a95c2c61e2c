// One suite for the cache over both pairs of stores.
#include "cache/kv_cache.h"

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache/cache_test_util.h"
#include "tests/support/status_matchers.h"

namespace overture::cache {
namespace {

using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class KvCacheTest : public ::testing::TestWithParam<bool> {
 protected:
  KvCacheTest() { Open({.max_bytes = int64_t{64} << 20}); }

  // With RocksDB, opening again is a restart.
  void Open(const KvCache::Options& options) {
    cache_.reset();
    Stores stores;
    if (GetParam()) {
      auto opened = OpenRocksDbStores(dir_.Join("db"));
      ASSERT_TRUE(opened.ok()) << opened.status();
      stores = *std::move(opened);
    } else {
      stores = OpenMemoryStores();
    }
    auto cache = KvCache::Open(options, std::move(stores.meta),
                               std::move(stores.payload));
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }

  FastTempDir dir_;
  std::unique_ptr<KvCache> cache_;
};

INSTANTIATE_TEST_SUITE_P(Stores, KvCacheTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "RocksDb" : "Memory";
                         });

TEST_P(KvCacheTest, AnEmptyCacheMatchesNothing) {
  const auto tokens = Prompt(1, 1000);
  EXPECT_EQ(cache_->Match(DensePolicy(), tokens, 936).num_tokens, 0);
  EXPECT_EQ(cache_->Match(SparsePolicy(), tokens, 936).num_tokens, 0);
  EXPECT_EQ(cache_->Match(DensePolicy(), {}, 0).num_tokens, 0);
  EXPECT_EQ(cache_->Match(DensePolicy(), tokens, -5).num_tokens, 0);
  EXPECT_EQ(cache_->stats().live_leases, 0);
}

TEST_P(KvCacheTest, WhatWasCommittedIsMatchedAndReadsBack) {
  for (const ChainPolicy& policy : {DensePolicy(), SparsePolicy()}) {
    const auto tokens = Prompt(1, 1300);
    const CommitResult stored = Store(*cache_, policy, tokens);
    OVERTURE_EXPECT_OK(stored.status);
    EXPECT_TRUE(stored.persisted);
    EXPECT_TRUE(stored.readable);
    const PrefixMatch match = cache_->Match(policy, tokens, 1300);
    EXPECT_EQ(match.num_tokens, 1300);
    OVERTURE_EXPECT_OK(CheckCanary(*cache_, policy, match.spans, tokens));
  }
}

TEST_P(KvCacheTest, RecordsAreBlocksOfTheSpanInLayoutOrder) {
  const ChainPolicy policy = SparsePolicy();
  const auto tokens = Prompt(1, 600);
  ASSERT_TRUE(Store(*cache_, policy, tokens).persisted);
  const auto spans = cache_->Lookup(policy, tokens, 600);
  ASSERT_THAT(spans, SizeIs(2));
  for (int32_t layer = 0; layer < policy.layout.num_layers; ++layer) {
    for (int32_t block = 0; block < 2; ++block) {
      OVERTURE_ASSERT_OK_AND_ASSIGN(
          const std::string record,
          cache_->ReadRecord(policy.layout, spans[0].span, layer, block));
      EXPECT_EQ(record,
                CanaryRecord(policy.layout, tokens, layer, 256 * block, 256));
    }
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const std::string tail,
        cache_->ReadRecord(policy.layout, spans[1].span, layer, 0));
    EXPECT_EQ(tail, CanaryRecord(policy.layout, tokens, layer, 512, 88));
  }
}

TEST_P(KvCacheTest, ReadsOutsideASpanAreRefused) {
  const ChainPolicy policy = DensePolicy();
  const auto tokens = Prompt(1, 256);
  ASSERT_TRUE(Store(*cache_, policy, tokens).persisted);
  const SpanInfo span = cache_->Lookup(policy, tokens, 256)[0].span;
  EXPECT_THAT(cache_->ReadRecord(policy.layout, span, 3, 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("layer is 3, must be 0 to 2")));
  EXPECT_THAT(cache_->ReadRecord(policy.layout, span, 0, 1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("block is 1, must be 0 to 0")));
  KvLayout other = policy.layout;
  other.dtype = DType::kF16;
  EXPECT_THAT(cache_->ReadRecord(other, span, 0, 0),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  SpanInfo unknown = span;
  unknown.key.bytes[0] ^= 1;
  EXPECT_THAT(cache_->ReadRecord(policy.layout, unknown, 0, 0),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_P(KvCacheTest, AnotherRootIsAMiss) {
  const auto tokens = Prompt(1, 600);
  ASSERT_TRUE(Store(*cache_, DensePolicy(kTinyLayout, 1), tokens).persisted);
  EXPECT_EQ(cache_->Match(DensePolicy(kTinyLayout, 9), tokens, 600).num_tokens,
            0);
}

TEST_P(KvCacheTest, ADifferentTokenEndsTheMatchAtItsSpan) {
  auto tokens = Prompt(1, 1024);
  ASSERT_TRUE(Store(*cache_, DensePolicy(), tokens).persisted);
  ASSERT_TRUE(Store(*cache_, SparsePolicy(), tokens).persisted);
  tokens[800] ^= 1;
  EXPECT_EQ(cache_->Match(DensePolicy(), tokens, 1024).num_tokens, 768);
  EXPECT_EQ(cache_->Match(SparsePolicy(), tokens, 1024).num_tokens, 512);
}

TEST_P(KvCacheTest, ATailMatchesOnlyAPromptThatHoldsAllOfIt) {
  const auto tokens = Prompt(1, 600);
  for (const ChainPolicy& policy : {DensePolicy(), SparsePolicy()}) {
    ASSERT_TRUE(Store(*cache_, policy, tokens).persisted);
    const auto shorter = absl::MakeConstSpan(tokens).first(599);
    EXPECT_EQ(cache_->Match(policy, shorter, 599).num_tokens, 512);
    auto longer = tokens;
    longer.push_back(7);
    EXPECT_EQ(cache_->Match(policy, longer, 601).num_tokens, 600);
  }
}

TEST_P(KvCacheTest, TheLimitCutsTheLastSpan) {
  const auto tokens = Prompt(1, 600);
  for (const ChainPolicy& policy : {DensePolicy(), SparsePolicy()}) {
    ASSERT_TRUE(Store(*cache_, policy, tokens).persisted);
    for (const int64_t limit : {1, 255, 256, 257, 511, 512, 536, 600}) {
      const PrefixMatch match = cache_->Match(policy, tokens, limit);
      EXPECT_EQ(match.num_tokens, limit);
      OVERTURE_EXPECT_OK(CheckCanary(*cache_, policy, match.spans, tokens));
    }
  }
}

TEST_P(KvCacheTest, TheSamePromptAgainStoresNothing) {
  const auto tokens = Prompt(1, 700);
  for (const ChainPolicy& policy : {DensePolicy(), SparsePolicy()}) {
    EXPECT_EQ(Turn(*cache_, policy, tokens, 64), 0);
    const KvCache::Stats before = cache_->stats();
    EXPECT_EQ(Turn(*cache_, policy, tokens, 64), 700 - 64);
    EXPECT_EQ(cache_->stats().num_spans, before.num_spans);
    EXPECT_EQ(cache_->stats().stored_bytes, before.stored_bytes);
  }
}

// What is stored anew each time would fill the store with one prompt.
TEST_P(KvCacheTest, APromptWhoseTailIsShorterThanTheWindowSettles) {
  const auto tokens = Prompt(1, 512 + 20);
  for (const ChainPolicy& policy : {DensePolicy(), SparsePolicy()}) {
    Turn(*cache_, policy, tokens, 64);
    Turn(*cache_, policy, tokens, 64);
    const KvCache::Stats settled = cache_->stats();
    for (int i = 0; i < 3; ++i) Turn(*cache_, policy, tokens, 64);
    EXPECT_EQ(cache_->stats().num_spans, settled.num_spans);
  }
}

TEST_P(KvCacheTest, SessionsOfShortAndLongTurnsKeepMatching) {
  constexpr uint32_t kSeed = 20240607;
  std::mt19937 random(kSeed);
  SCOPED_TRACE(kSeed);
  constexpr int64_t kWindow = 64;
  for (const ChainPolicy& policy : {DensePolicy(), SparsePolicy()}) {
    for (const int64_t longest : {63, 300}) {
      const auto tokens = Prompt(longest, 10 * longest);
      int64_t previous = 0, n = 0;
      for (int turn = 0; turn < 10; ++turn) {
        n += std::uniform_int_distribution<int64_t>(5, longest)(random);
        const int64_t reused = Turn(
            *cache_, policy, absl::MakeConstSpan(tokens).first(n), kWindow);
        EXPECT_GE(reused, std::min(previous, n - kWindow)) << "turn " << turn;
        EXPECT_GE(reused, previous - kWindow) << "turn " << turn;
        previous = n;
      }
    }
  }
}

TEST_P(KvCacheTest, BranchesOfOnePrefixAreKeptApart) {
  for (const ChainPolicy& policy : {DensePolicy(), SparsePolicy()}) {
    const auto shared = Prompt(5, 700);
    std::vector<std::vector<int32_t>> prompts;
    Turn(*cache_, policy, shared, 64);
    for (uint64_t branch = 0; branch < 4; ++branch) {
      auto tokens = shared;
      for (int32_t id : Prompt(100 + branch, 500)) tokens.push_back(id);
      EXPECT_EQ(Turn(*cache_, policy, tokens, 64), 700);
      prompts.push_back(std::move(tokens));
    }
    for (const auto& tokens : prompts) {
      const PrefixMatch match = cache_->Match(policy, tokens, 1200);
      EXPECT_EQ(match.num_tokens, 1200);
      OVERTURE_EXPECT_OK(CheckCanary(*cache_, policy, match.spans, tokens));
    }
  }
}

TEST_P(KvCacheTest, ATailThatGrewIntoABlockIsTheColdPromptsBlock) {
  const auto tokens = Prompt(1, 600);
  Turn(*cache_, DensePolicy(), absl::MakeConstSpan(tokens).first(300), 64);
  Turn(*cache_, DensePolicy(), tokens, 64);
  const auto spans = cache_->Lookup(DensePolicy(), tokens, 600);
  const auto cold = PlanSpans(DensePolicy(), {}, tokens);
  ASSERT_THAT(spans, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(spans[i].span, cold[i]);
}

TEST_P(KvCacheTest, NothingIsVisibleBeforeCommit) {
  const ChainPolicy policy = DensePolicy();
  const auto tokens = Prompt(1, 300);
  const auto spans = PlanSpans(policy, {}, tokens);
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto writer, cache_->NewWriter(policy, spans));
  for (int32_t layer = 0; layer < 3; ++layer) {
    const CanaryLayer kv(policy.layout, tokens, layer);
    writer->PutLayer(layer, kv.view());
    EXPECT_THAT(cache_->Lookup(policy, tokens, 300), IsEmpty());
    EXPECT_THAT(cache_->ReadRecord(policy.layout, spans[0], 0, 0),
                StatusIs(absl::StatusCode::kNotFound));
  }
  EXPECT_TRUE(writer->Commit({}).persisted);
  EXPECT_THAT(cache_->Lookup(policy, tokens, 300), SizeIs(2));
}

TEST_P(KvCacheTest, AHeldWriteIsReadWhileLeasedAndFoundByNobody) {
  const ChainPolicy policy = DensePolicy();
  const auto tokens = Prompt(1, 300);
  const auto spans = PlanSpans(policy, {}, tokens);
  {
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        auto writer, cache_->NewWriter(policy, spans, KvCache::Keep::kHold));
    for (int32_t layer = 0; layer < 3; ++layer) {
      writer->PutLayer(layer, CanaryLayer(policy.layout, tokens, layer).view());
    }
    const CommitResult result = writer->Commit({{"s", "history"}});
    EXPECT_FALSE(result.persisted);
    EXPECT_TRUE(result.readable);
    EXPECT_TRUE(result.session_persisted);
    EXPECT_THAT(cache_->Lookup(policy, tokens, 300), IsEmpty());
    OVERTURE_EXPECT_OK(cache_->ReadRecord(policy.layout, spans[0], 0, 0));
    EXPECT_EQ(cache_->stats().stored_bytes, 0);
    EXPECT_EQ(cache_->stats().dropped_writes, 0);
  }
  EXPECT_THAT(cache_->ReadRecord(policy.layout, spans[0], 0, 0),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(cache_->stats().memory_bytes, 0);
}

TEST_P(KvCacheTest, AWriterDroppedWithoutCommitLeavesNothing) {
  const ChainPolicy policy = DensePolicy();
  const auto tokens = Prompt(1, 300);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto writer, cache_->NewWriter(policy, PlanSpans(policy, {}, tokens)));
  const CanaryLayer kv(policy.layout, tokens, 0);
  writer->PutLayer(0, kv.view());
  writer.reset();
  // The next commit waits for all that was queued before it.
  EXPECT_TRUE(Store(*cache_, policy, Prompt(2, 10)).persisted);
  EXPECT_THAT(cache_->Lookup(policy, tokens, 300), IsEmpty());
  EXPECT_EQ(cache_->stats().num_spans, 1);
  EXPECT_EQ(cache_->stats().memory_bytes, 0);
}

TEST_P(KvCacheTest, ACommitWithoutAllLayersIsRefused) {
  const ChainPolicy policy = DensePolicy();
  const auto tokens = Prompt(1, 300);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto writer, cache_->NewWriter(policy, PlanSpans(policy, {}, tokens)));
  const CanaryLayer kv(policy.layout, tokens, 1);
  writer->PutLayer(1, kv.view());
  const CommitResult result = writer->Commit({});
  EXPECT_FALSE(result.persisted);
  EXPECT_FALSE(result.readable);
  EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("layer 0")));
  EXPECT_THAT(cache_->Lookup(policy, tokens, 300), IsEmpty());
}

TEST_P(KvCacheTest, SpansThatAreNoChainAreRefused) {
  const ChainPolicy policy = DensePolicy();
  auto spans = PlanSpans(policy, {}, Prompt(1, 600));
  std::swap(spans[0], spans[1]);
  EXPECT_THAT(cache_->NewWriter(policy, spans),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ChainPolicy bad = policy;
  bad.layout.num_layers = 0;
  EXPECT_THAT(
      cache_->NewWriter(bad, {}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("layers")));
}

TEST_P(KvCacheTest, TwoWritersOfOneSpanStoreItOnce) {
  const ChainPolicy policy = DensePolicy();
  const auto tokens = Prompt(1, 300);
  const auto spans = PlanSpans(policy, {}, tokens);
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto a, cache_->NewWriter(policy, spans));
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto b, cache_->NewWriter(policy, spans));
  for (int32_t layer = 0; layer < 3; ++layer) {
    const CanaryLayer kv(policy.layout, tokens, layer);
    a->PutLayer(layer, kv.view());
    b->PutLayer(layer, kv.view());
  }
  EXPECT_TRUE(b->Commit({}).persisted);
  const KvCache::Stats once = cache_->stats();
  const CommitResult second = a->Commit({});
  EXPECT_TRUE(second.persisted);
  EXPECT_EQ(second.bytes_written, 0);
  EXPECT_EQ(cache_->stats().stored_bytes, once.stored_bytes);
  const PrefixMatch match = cache_->Match(policy, tokens, 300);
  OVERTURE_EXPECT_OK(CheckCanary(*cache_, policy, match.spans, tokens));
}

TEST_P(KvCacheTest, LeasesAreCountedAndReleasedOnce) {
  const auto tokens = Prompt(1, 300);
  {
    const CommitResult stored = Store(*cache_, DensePolicy(), tokens);
    EXPECT_EQ(cache_->stats().live_leases, 1);
    PrefixMatch match = cache_->Match(DensePolicy(), tokens, 300);
    EXPECT_EQ(cache_->stats().live_leases, 2);
    Lease moved = std::move(match.lease);
    EXPECT_EQ(cache_->stats().live_leases, 2);
    moved.Release();
    moved.Release();
    EXPECT_EQ(cache_->stats().live_leases, 1);
    cache_->Lookup(DensePolicy(), tokens, 300);
    EXPECT_EQ(cache_->stats().live_leases, 1);
  }
  EXPECT_EQ(cache_->stats().live_leases, 0);
}

TEST_P(KvCacheTest, PinNamesTheSpanThatIsNotStored) {
  const auto tokens = Prompt(1, 300);
  ASSERT_TRUE(Store(*cache_, DensePolicy(), tokens).persisted);
  const auto spans = PlanSpans(DensePolicy(), {}, tokens);
  OVERTURE_EXPECT_OK(cache_->Pin({spans[0].key, spans[1].key}));
  SpanKey unknown = spans[0].key;
  unknown.bytes[0] ^= 1;
  EXPECT_THAT(cache_->Pin({spans[0].key, unknown}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(unknown.Hex())));
}

TEST_P(KvCacheTest, HitRatesAreTokensMatchedOverTokensAsked) {
  const auto tokens = Prompt(1, 300);
  Turn(*cache_, DensePolicy(), tokens, 64);
  Turn(*cache_, DensePolicy(), tokens, 64);
  cache_->Lookup(DensePolicy(), tokens, 300);
  EXPECT_EQ(cache_->stats().tokens_asked, 600);
  EXPECT_EQ(cache_->stats().tokens_matched, 236);
}

TEST_P(KvCacheTest, SessionsAreBytesUnderAnId) {
  const std::string hostile("../\0\xff", 5);
  OVERTURE_EXPECT_OK(cache_->PutSession("a", "one"));
  OVERTURE_EXPECT_OK(cache_->PutSession("a", "two"));
  OVERTURE_EXPECT_OK(cache_->PutSession(hostile, "three"));
  EXPECT_THAT(cache_->ListSessions(), ElementsAre(hostile, "a"));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                                cache_->GetSession("a"));
  EXPECT_EQ(bytes, "two");
  OVERTURE_EXPECT_OK(cache_->DeleteSession("a"));
  OVERTURE_EXPECT_OK(cache_->DeleteSession("a"));
  EXPECT_THAT(cache_->GetSession("a"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'a'")));
  EXPECT_EQ(cache_->stats().num_sessions, 1);
}

TEST_P(KvCacheTest, ACommitCarriesASession) {
  const ChainPolicy policy = DensePolicy();
  const auto tokens = Prompt(1, 300);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto writer, cache_->NewWriter(policy, PlanSpans(policy, {}, tokens)));
  for (int32_t layer = 0; layer < 3; ++layer) {
    const CanaryLayer kv(policy.layout, tokens, layer);
    writer->PutLayer(layer, kv.view());
  }
  EXPECT_THAT(cache_->GetSession("chat"),
              StatusIs(absl::StatusCode::kNotFound));
  const CommitResult result =
      writer->Commit(KvCache::Writer::SessionUpdate{"chat", "state"});
  EXPECT_TRUE(result.session_persisted);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                                cache_->GetSession("chat"));
  EXPECT_EQ(bytes, "state");
}

TEST_P(KvCacheTest, OptionsWithoutALimitAreRefused) {
  Stores stores = OpenMemoryStores();
  EXPECT_THAT(
      KvCache::Open({}, std::move(stores.meta), std::move(stores.payload)),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("max_bytes is 0")));
}

}  // namespace
}  // namespace overture::cache
