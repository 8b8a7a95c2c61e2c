// The byte limit, over both pairs of stores.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/record_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache/cache_test_util.h"
#include "tests/support/status_matchers.h"

namespace overture::cache {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// One span of one block: 3 records of 96 KiB.
constexpr int64_t kBlockTokens = 256;
const int64_t kSpanBytes = 3 * RecordBytes(kBlobLayout, kBlockTokens);

class KvCacheEvictionTest : public ::testing::TestWithParam<bool> {
 protected:
  // Room for 40 spans of one block; eviction from 36 on, down to 34.
  static constexpr int64_t kRoom = 40;

  KvCacheEvictionTest() { Open(kRoom); }

  void Open(int64_t num_spans) {
    cache_.reset();
    Stores stores;
    if (GetParam()) {
      auto opened = OpenRocksDbStores(dir_.Join("db"));
      ASSERT_TRUE(opened.ok()) << opened.status();
      stores = *std::move(opened);
    } else {
      stores = OpenMemoryStores();
    }
    auto cache =
        KvCache::Open({.max_bytes = num_spans * kSpanBytes},
                      std::move(stores.meta), std::move(stores.payload));
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }

  std::vector<int32_t> Block(uint64_t seed) {
    return Prompt(seed, kBlockTokens);
  }
  bool Put(uint64_t seed) {
    return Store(*cache_, policy_, Block(seed)).persisted;
  }
  bool Has(uint64_t seed) {
    return !cache_->Lookup(policy_, Block(seed), kBlockTokens).empty();
  }
  void ExpectWithinLimit() {
    const KvCache::Stats stats = cache_->stats();
    EXPECT_LE(stats.stored_bytes, kRoom * kSpanBytes);
    EXPECT_LE(stats.physical_bytes, kRoom * kSpanBytes);
  }

  const ChainPolicy policy_ = DensePolicy(kBlobLayout);
  FastTempDir dir_;
  std::unique_ptr<KvCache> cache_;
};

INSTANTIATE_TEST_SUITE_P(Stores, KvCacheEvictionTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "RocksDb" : "Memory";
                         });

TEST_P(KvCacheEvictionTest, TheLeastRecentlyUsedGoFirst) {
  for (uint64_t i = 0; i < 36; ++i) ASSERT_TRUE(Put(i));
  EXPECT_EQ(cache_->stats().evicted_bytes, 0);
  // A use saves the oldest; a lookup is none.
  cache_->Match(policy_, Block(0), kBlockTokens);
  cache_->Lookup(policy_, Block(1), kBlockTokens);
  ASSERT_TRUE(Put(36));
  EXPECT_TRUE(Has(0));
  EXPECT_FALSE(Has(1));
  // From 37 down to 34 of 40, and no further.
  EXPECT_EQ(cache_->stats().num_spans, 34);
  EXPECT_EQ(cache_->stats().evicted_bytes, 3 * kSpanBytes);
}

TEST_P(KvCacheEvictionTest, ChildrenGoBeforeTheirParents) {
  const auto tokens = Prompt(1, 30 * kBlockTokens);
  ASSERT_TRUE(Store(*cache_, policy_, tokens).persisted);
  for (uint64_t i = 100; i < 110; ++i) ASSERT_TRUE(Put(i));
  // What is left of the prompt is a prefix without holes.
  const PrefixMatch match = cache_->Match(policy_, tokens, 30 * kBlockTokens);
  EXPECT_GT(match.num_tokens, 20 * kBlockTokens);
  EXPECT_LT(match.num_tokens, 30 * kBlockTokens);
  OVERTURE_EXPECT_OK(CheckCanary(*cache_, policy_, match.spans, tokens));
  EXPECT_EQ(cache_->stats().num_spans,
            10 + static_cast<int64_t>(match.spans.size()));
}

TEST_P(KvCacheEvictionTest, LeasedSpansStay) {
  const auto leased = Prompt(1, 10 * kBlockTokens);
  ASSERT_TRUE(Store(*cache_, policy_, leased).persisted);
  PrefixMatch match = cache_->Match(policy_, leased, 10 * kBlockTokens);
  for (uint64_t i = 100; i < 160; ++i) {
    ASSERT_TRUE(Put(i)) << i;
    if (i % 10 == 0) ExpectWithinLimit();
  }
  OVERTURE_EXPECT_OK(CheckCanary(*cache_, policy_, match.spans, leased));
  match.lease.Release();
  for (uint64_t i = 200; i < 240; ++i) ASSERT_TRUE(Put(i));
  EXPECT_EQ(cache_->Match(policy_, leased, 10 * kBlockTokens).num_tokens, 0);
}

TEST_P(KvCacheEvictionTest, WhatCannotFitIsDroppedAndEvictsNothing) {
  for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(Put(i));
  const CommitResult result =
      Store(*cache_, policy_, Prompt(1000, 41 * kBlockTokens));
  EXPECT_FALSE(result.persisted);
  EXPECT_TRUE(result.readable);
  EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kResourceExhausted,
                                      HasSubstr("max_bytes")));
  EXPECT_EQ(cache_->stats().num_spans, 10);
  EXPECT_EQ(cache_->stats().evicted_bytes, 0);
}

TEST_P(KvCacheEvictionTest, WhenAllIsLeasedNewWritesAreDropped) {
  std::vector<Lease> leases;
  // Keys and tables take the place of one span in RocksDB.
  for (uint64_t i = 0; i < (GetParam() ? 39 : 40); ++i) {
    CommitResult result = Store(*cache_, policy_, Block(i));
    ASSERT_TRUE(result.persisted) << i;
    leases.push_back(std::move(result.lease));
  }
  EXPECT_FALSE(Put(40));
  leases.clear();
  EXPECT_TRUE(Put(40));
}

TEST_P(KvCacheEvictionTest, WhatWasJustWrittenSurvivesItsRound) {
  // A working set of 1.1 times the limit, two rounds of it.
  for (int round = 0; round < 2; ++round) {
    for (uint64_t i = 0; i < 44; ++i) {
      const int64_t evicted = cache_->stats().evicted_bytes;
      ASSERT_TRUE(Put(i)) << i;
      EXPECT_TRUE(Has(i)) << i;
      // Down to 34 of 40, plus one unit.
      EXPECT_LE(cache_->stats().evicted_bytes - evicted, 4 * kSpanBytes);
      ExpectWithinLimit();
    }
  }
}

TEST_P(KvCacheEvictionTest, EveryByteReadUnderPressureIsItsOwn) {
  // 64 prompts of 3 spans, room for 13 of them: each read is a miss or clean.
  int64_t hits = 0;
  for (uint64_t i = 0; i < 64; ++i) {
    for (const uint64_t seed : {i, i / 2}) {
      const auto tokens = Prompt(seed, 600);
      const PrefixMatch match = cache_->Match(policy_, tokens, 600);
      OVERTURE_ASSERT_OK(CheckCanary(*cache_, policy_, match.spans, tokens));
      hits += match.num_tokens == 600;
      EXPECT_TRUE(Store(*cache_, policy_, tokens, match).persisted);
    }
  }
  EXPECT_GT(hits, 0);
  ExpectWithinLimit();
}

class KvCacheRestartEvictionTest : public KvCacheEvictionTest {};
INSTANTIATE_TEST_SUITE_P(Stores, KvCacheRestartEvictionTest,
                         ::testing::Values(true));

TEST_P(KvCacheRestartEvictionTest, TheLimitHoldsAcrossARestart) {
  for (uint64_t i = 0; i < 38; ++i) ASSERT_TRUE(Put(i));
  const int64_t before = cache_->stats().stored_bytes;
  Open(kRoom);
  EXPECT_EQ(cache_->stats().stored_bytes, before);
  for (uint64_t i = 100; i < 140; ++i) {
    ASSERT_TRUE(Put(i)) << i;
    ExpectWithinLimit();
  }
}

TEST_P(KvCacheRestartEvictionTest, ASmallerLimitIsMetAtTheStart) {
  for (uint64_t i = 0; i < 30; ++i) ASSERT_TRUE(Put(i));
  Open(20);
  EXPECT_EQ(cache_->stats().num_spans, 17);  // 85% of 20
  EXPECT_TRUE(Put(100));
}

}  // namespace
}  // namespace overture::cache
