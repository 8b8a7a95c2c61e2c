// Many threads match, read, write, evict, and give up midway. Run it under the
// address and thread sanitizers.
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/record_format.h"
#include "gtest/gtest.h"
#include "tests/cache/cache_test_util.h"
#include "tests/support/status_matchers.h"

namespace overture::cache {
namespace {

class KvCacheConcurrencyTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Stores, KvCacheConcurrencyTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "RocksDb" : "Memory";
                         });

TEST_P(KvCacheConcurrencyTest, ThreadsSeeCleanPrefixesOrMisses) {
  FastTempDir dir;
  Stores stores;
  if (GetParam()) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(stores, OpenRocksDbStores(dir.Join("db")));
  } else {
    stores = OpenMemoryStores();
  }
  // Half of the working set of 24 prompts of 4 spans.
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<KvCache> cache,
      KvCache::Open({.max_bytes = 48 * 3 * RecordBytes(kTinyLayout, 256)},
                    std::move(stores.meta), std::move(stores.payload)));

  std::atomic<int64_t> num_foreign{0}, num_hits{0}, num_stored{0};
  const auto work = [&](uint64_t thread) {
    for (uint64_t i = 0; i < 60; ++i) {
      const uint64_t seed = (i * 7 + thread * 5) % 24;
      const ChainPolicy policy = seed % 2 == 0 ? DensePolicy() : SparsePolicy();
      const auto all = Prompt(seed, 1000);
      const auto tokens = absl::MakeConstSpan(all).first(300 + 100 * (i % 8));
      const int64_t n = static_cast<int64_t>(tokens.size());
      const PrefixMatch match = cache->Match(policy, tokens, n - 64);
      const absl::Status read =
          CheckCanary(*cache, policy, match.spans, tokens);
      // Leased: neither gone nor torn.
      if (!read.ok()) ++num_foreign;
      num_hits += match.num_tokens > 0;
      auto writer =
          cache->NewWriter(policy, PlanSpans(policy, match.spans, tokens));
      if (!writer.ok()) {
        ++num_foreign;
        continue;
      }
      for (int32_t layer = 0; layer < policy.layout.num_layers; ++layer) {
        if (i % 5 == 4 && layer == 2) break;  // the client went away
        const CanaryLayer kv(policy.layout, tokens, layer);
        (*writer)->PutLayer(layer, kv.view());
      }
      if (i % 5 == 4) continue;
      const CommitResult result = (*writer)->Commit(
          KvCache::Writer::SessionUpdate{std::to_string(seed), "turn"});
      num_stored += result.persisted;
      if (i % 10 == 0) {
        cache->stats();
        cache->ListSessions();
        cache->Lookup(policy, tokens, n);
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 6; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(num_foreign, 0);
  EXPECT_GT(num_hits, 0);
  EXPECT_GT(num_stored, 0);
  const KvCache::Stats stats = cache->stats();
  EXPECT_EQ(stats.damaged_records, 0);
  EXPECT_EQ(stats.live_leases, 0);
  EXPECT_LE(stats.stored_bytes, 48 * 3 * RecordBytes(kTinyLayout, 256));
  EXPECT_GT(stats.evicted_bytes, 0);
}

// Rounds of requests that are cancelled while their buffers are reused.
TEST_P(KvCacheConcurrencyTest, CancelledWritesLeaveNothingBehind) {
  FastTempDir dir;
  Stores stores;
  if (GetParam()) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(stores, OpenRocksDbStores(dir.Join("db")));
  } else {
    stores = OpenMemoryStores();
  }
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<KvCache> cache,
      KvCache::Open({.max_bytes = int64_t{64} << 20}, std::move(stores.meta),
                    std::move(stores.payload)));
  const ChainPolicy policy = DensePolicy();
  for (int round = 0; round < 4; ++round) {
    for (uint64_t i = 0; i < 300; ++i) {
      const auto tokens = Prompt(i, 300);
      OVERTURE_ASSERT_OK_AND_ASSIGN(
          const auto writer,
          cache->NewWriter(policy, PlanSpans(policy, {}, tokens)));
      const CanaryLayer kv(policy.layout, tokens, 0);
      writer->PutLayer(0, kv.view());
    }
    const auto probe = Prompt(1000 + round, 300);
    EXPECT_TRUE(Store(*cache, policy, probe).persisted);
    const PrefixMatch match = cache->Match(policy, probe, 300);
    EXPECT_EQ(match.num_tokens, 300);
    OVERTURE_EXPECT_OK(CheckCanary(*cache, policy, match.spans, probe));
  }
  EXPECT_EQ(cache->stats().num_spans, 8);
  EXPECT_EQ(cache->stats().memory_bytes, 0);
  EXPECT_EQ(cache->stats().live_leases, 0);
}

}  // namespace
}  // namespace overture::cache
