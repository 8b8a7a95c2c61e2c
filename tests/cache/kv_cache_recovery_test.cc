// Restart, damage on the medium, and foreign or malformed contents: RocksDB on
// a real disk.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/directory_format.h"
#include "cache/kv_cache.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache/cache_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::cache {
namespace {

using ::overture::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class KvCacheRecoveryTest : public ::testing::Test {
 protected:
  Stores OpenStores() {
    auto stores = OpenRocksDbStores(dir_.Join("db"));
    EXPECT_TRUE(stores.ok()) << stores.status();
    return *std::move(stores);
  }
  absl::Status TryOpen() {
    cache_.reset();
    Stores stores = OpenStores();
    auto cache =
        KvCache::Open({.max_bytes = int64_t{256} << 20}, std::move(stores.meta),
                      std::move(stores.payload));
    if (!cache.ok()) return cache.status();
    cache_ = *std::move(cache);
    return absl::OkStatus();
  }
  void Restart() { OVERTURE_ASSERT_OK(TryOpen()); }

  // What is found of the prompt, all of it checked.
  int64_t CleanMatch(const ChainPolicy& policy,
                     absl::Span<const int32_t> tokens) {
    const PrefixMatch match =
        cache_->Match(policy, tokens, static_cast<int64_t>(tokens.size()));
    OVERTURE_EXPECT_OK(CheckCanary(*cache_, policy, match.spans, tokens));
    return match.num_tokens;
  }

  // Flips one byte of the blob file that holds `bytes`, inside of them.
  void FlipByteOnDisk(const std::string& bytes) {
    for (const auto& file :
         std::filesystem::directory_iterator(dir_.Join("db"))) {
      if (file.path().extension() != ".blob") continue;
      std::ifstream in(file.path(), std::ios::binary);
      std::string content((std::istreambuf_iterator<char>(in)), {});
      const size_t at = content.find(bytes);
      if (at == std::string::npos) continue;
      content[at + bytes.size() / 2] ^= 0x10;
      std::ofstream(file.path(), std::ios::binary) << content;
      return;
    }
    FAIL() << "no blob file holds the record";
  }

  const ChainPolicy dense_ = DensePolicy(kBlobLayout);
  const ChainPolicy sparse_ = SparsePolicy(kBlobLayout);
  testing::TempDir dir_;
  std::unique_ptr<KvCache> cache_;
};

TEST_F(KvCacheRecoveryTest, ARestartServesAllThatWasCommitted) {
  Restart();
  const auto tokens = Prompt(1, 900);
  for (const ChainPolicy& policy : {dense_, sparse_}) {
    Turn(*cache_, policy, absl::MakeConstSpan(tokens).first(300), 64);
    Turn(*cache_, policy, absl::MakeConstSpan(tokens).first(340), 64);
    Turn(*cache_, policy, tokens, 64);
  }
  OVERTURE_ASSERT_OK(cache_->PutSession("chat", "state"));
  const KvCache::Stats before = cache_->stats();
  for (int i = 0; i < 3; ++i) {
    Restart();
    EXPECT_EQ(CleanMatch(dense_, tokens), 900);
    EXPECT_EQ(CleanMatch(sparse_, tokens), 900);
    EXPECT_THAT(cache_->ListSessions(), ElementsAre("chat"));
    OVERTURE_EXPECT_OK(cache_->GetSession("chat"));
    EXPECT_EQ(cache_->stats().num_spans, before.num_spans);
    EXPECT_EQ(cache_->stats().stored_bytes, before.stored_bytes);
    EXPECT_EQ(cache_->stats().dropped_entries, 0);
  }
  // And goes on from there.
  auto longer = tokens;
  longer.resize(1000, 5);
  EXPECT_EQ(Turn(*cache_, dense_, longer, 64), 900);
  EXPECT_EQ(Turn(*cache_, sparse_, longer, 64), 900);
}

TEST_F(KvCacheRecoveryTest, PutIdsAreNeverUsedTwice) {
  std::vector<std::string> keys;
  for (int i = 0; i < 3; ++i) {
    Restart();
    Store(*cache_, dense_, Prompt(1, 100));
    cache_.reset();
    Stores stores = OpenStores();
    std::vector<std::string> now;
    OVERTURE_ASSERT_OK(stores.payload->ForEachKey(
        [&](absl::string_view key) { now.emplace_back(key); }));
    ASSERT_FALSE(now.empty());
    for (const std::string& key : now) {
      EXPECT_THAT(keys, ::testing::Not(::testing::Contains(key)));
    }
    keys.insert(keys.end(), now.begin(), now.end());
    // All of it goes, entry first; the next round writes the same prompt.
    const auto span = PlanSpans(dense_, {}, Prompt(1, 100))[0];
    OVERTURE_ASSERT_OK(
        stores.meta->Commit({{.key = EntryKey(span.key), .is_delete = true}}));
  }
}

TEST_F(KvCacheRecoveryTest, AnEntryWithoutAllItsPayloadIsDropped) {
  Restart();
  const auto whole = Prompt(1, 600), torn = Prompt(2, 600);
  ASSERT_TRUE(Store(*cache_, dense_, whole).persisted);
  ASSERT_TRUE(Store(*cache_, dense_, torn).persisted);
  cache_.reset();
  {
    // One record of the second prompt's middle span.
    Stores stores = OpenStores();
    std::vector<std::string> keys;
    OVERTURE_ASSERT_OK(stores.payload->ForEachKey(
        [&](absl::string_view key) { keys.emplace_back(key); }));
    ASSERT_EQ(keys.size(), 18u);
    OVERTURE_ASSERT_OK(stores.payload->DeleteRange(keys[13], keys[14]));
    OVERTURE_ASSERT_OK(stores.payload->Flush());
  }
  Restart();
  // The span itself and the tail that hangs below it.
  EXPECT_EQ(cache_->stats().dropped_entries, 2);
  EXPECT_EQ(CleanMatch(dense_, whole), 600);
  EXPECT_EQ(CleanMatch(dense_, torn), 256);
  Restart();
  EXPECT_EQ(cache_->stats().dropped_entries, 0);
}

TEST_F(KvCacheRecoveryTest, PayloadWithoutAnEntryIsDeleted) {
  Restart();
  ASSERT_TRUE(Store(*cache_, dense_, Prompt(1, 300)).persisted);
  cache_.reset();
  const std::string record(100000, 'x');
  {
    Stores stores = OpenStores();
    OVERTURE_ASSERT_OK(stores.payload->Put(RecordKey(77, 0, 0), record));
    OVERTURE_ASSERT_OK(stores.payload->Put("foreign key", record));
    OVERTURE_ASSERT_OK(stores.payload->Flush());
  }
  Restart();
  EXPECT_EQ(CleanMatch(dense_, Prompt(1, 300)), 300);
  cache_.reset();
  Stores stores = OpenStores();
  EXPECT_THAT(stores.payload->Get(RecordKey(77, 0, 0)),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(stores.payload->Get("foreign key"),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(KvCacheRecoveryTest, MalformedEntriesAreDroppedAndCounted) {
  Restart();
  const auto tokens = Prompt(1, 600);
  ASSERT_TRUE(Store(*cache_, dense_, tokens).persisted);
  cache_.reset();
  {
    Stores stores = OpenStores();
    std::vector<MetaStore::Write> garbage;
    for (int i = 0; i < 200; ++i) {
      // Keys and values of every length around the right one.
      garbage.push_back({.key = absl::StrCat("e", std::string(i % 40, 'k'), i),
                         .value = std::string(i, static_cast<char>(i))});
    }
    const auto last = PlanSpans(dense_, {}, tokens).back();
    OVERTURE_ASSERT_OK_AND_ASSIGN(std::string value,
                                  stores.meta->Get(EntryKey(last.key)));
    value[40] ^= 1;  // its put id
    garbage.push_back({.key = EntryKey(last.key), .value = value});
    OVERTURE_ASSERT_OK(stores.meta->Commit(garbage));
  }
  Restart();
  EXPECT_EQ(cache_->stats().dropped_entries, 201);
  EXPECT_EQ(CleanMatch(dense_, tokens), 512);
}

TEST_F(KvCacheRecoveryTest, AnUnknownFormatIsRefusedAndLeftAlone) {
  Restart();
  ASSERT_TRUE(Store(*cache_, dense_, Prompt(1, 300)).persisted);
  cache_.reset();
  const auto put_format = [&](const std::string& bytes) {
    OVERTURE_ASSERT_OK(OpenStores().meta->Commit(
        {{.key = std::string(kFormatKey), .value = bytes}}));
  };
  put_format(EncodeStoreFormat({.version = 2}));
  EXPECT_THAT(TryOpen(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("version 2"), HasSubstr("reads 1"))));
  put_format("garbage");
  EXPECT_THAT(TryOpen(), StatusIs(absl::StatusCode::kDataLoss));
  put_format(EncodeStoreFormat({.epoch = 50}));
  Restart();
  EXPECT_EQ(CleanMatch(dense_, Prompt(1, 300)), 300);
}

TEST_F(KvCacheRecoveryTest, AFlippedByteOnDiskCostsItsSpanAlone) {
  Restart();
  const auto hit = Prompt(1, 1024), neighbour = Prompt(2, 1024);
  ASSERT_TRUE(Store(*cache_, dense_, hit).persisted);
  ASSERT_TRUE(Store(*cache_, dense_, neighbour).persisted);
  cache_.reset();
  FlipByteOnDisk(CanaryRecord(kBlobLayout, hit, /*layer=*/1, 512, 256));
  Restart();

  // Nothing is known of the damage before the read.
  const auto spans = cache_->Lookup(dense_, hit, 1024);
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_THAT(cache_->ReadRecord(kBlobLayout, spans[2].span, 1, 0),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("layer 1")));
  EXPECT_EQ(cache_->stats().damaged_records, 1);

  EXPECT_EQ(CleanMatch(dense_, hit), 512);
  EXPECT_EQ(CleanMatch(dense_, neighbour), 1024);
  EXPECT_EQ(Turn(*cache_, dense_, hit, 0), 512);
  EXPECT_EQ(CleanMatch(dense_, hit), 1024);
  // The verdict is durable.
  Restart();
  EXPECT_EQ(CleanMatch(dense_, hit), 1024);
}

TEST_F(KvCacheRecoveryTest, ALostBlobFileIsAMiss) {
  Restart();
  const auto lost = Prompt(1, 512), kept = Prompt(2, 512);
  ASSERT_TRUE(Store(*cache_, dense_, kept).persisted);
  std::vector<std::filesystem::path> before;
  const auto blob_files = [&] {
    std::vector<std::filesystem::path> files;
    for (const auto& file :
         std::filesystem::directory_iterator(dir_.Join("db"))) {
      if (file.path().extension() == ".blob") files.push_back(file.path());
    }
    return files;
  };
  for (const auto& file : blob_files()) before.push_back(file);
  ASSERT_TRUE(Store(*cache_, dense_, lost).persisted);
  for (const auto& file : blob_files()) {
    if (std::count(before.begin(), before.end(), file) == 0) {
      // Cut while open: a read of it comes back short.
      std::filesystem::resize_file(file, 100);
    }
  }
  const auto spans = cache_->Lookup(dense_, lost, 512);
  EXPECT_THAT(CheckCanary(*cache_, dense_, spans, lost),
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(CleanMatch(dense_, lost), 0);
  EXPECT_EQ(CleanMatch(dense_, kept), 512);
}

// Short tails lie in the tables themselves, whose blocks are read without
// RocksDB's checksum.
TEST_F(KvCacheRecoveryTest, AFlippedByteInATableIsNeverServed) {
  Restart();
  const auto tokens = Prompt(1, 600);
  const ChainPolicy tiny = DensePolicy(kTinyLayout);
  ASSERT_TRUE(Store(*cache_, tiny, tokens).persisted);
  cache_.reset();
  std::filesystem::path table;
  for (const auto& file :
       std::filesystem::directory_iterator(dir_.Join("db"))) {
    if (file.path().extension() == ".sst") table = file.path();
  }
  ASSERT_FALSE(table.empty());
  std::ifstream in(table, std::ios::binary);
  const std::string intact((std::istreambuf_iterator<char>(in)), {});
  ASSERT_GT(intact.size(), size_t{200000});  // the records are in there

  const testing::TempDir copies;
  int num_misses = 0, num_refused = 0;
  constexpr int kPlaces = 40;
  for (int i = 0; i < kPlaces; ++i) {
    // Spread over the file, its end included: index, filter, footer.
    const size_t at =
        i < 20 ? intact.size() * i / 20 : intact.size() - 1 - (i - 20) * 60;
    SCOPED_TRACE(at);
    const std::string copy = copies.Join(std::to_string(i));
    std::filesystem::copy(dir_.Join("db"), copy);
    std::string damaged = intact;
    damaged[at] ^= 0x10;
    std::ofstream(std::filesystem::path(copy) / table.filename(),
                  std::ios::binary)
        << damaged;
    auto stores = OpenRocksDbStores(copy);
    if (!stores.ok()) {
      EXPECT_THAT(stores.status(), StatusIs(absl::StatusCode::kDataLoss));
      ++num_refused;
      continue;
    }
    auto cache =
        KvCache::Open({.max_bytes = int64_t{256} << 20},
                      std::move(stores->meta), std::move(stores->payload));
    if (!cache.ok()) {
      EXPECT_THAT(cache.status(), StatusIs(absl::StatusCode::kDataLoss));
      ++num_refused;
      continue;
    }
    // Until a match is clean: each round may lose a span to the damage.
    for (int round = 0; round < 4; ++round) {
      const PrefixMatch match = (*cache)->Match(tiny, tokens, 600);
      const absl::Status read = CheckCanary(**cache, tiny, match.spans, tokens);
      if (read.ok()) {
        num_misses += match.num_tokens < 600;
        break;
      }
      ASSERT_NE((*cache)->stats().damaged_records, 0) << read;
      ASSERT_LT(round, 3);
    }
  }
  // Damage in a table's index or footer stops the start; docs/kv_format.md.
  EXPECT_GT(num_misses, 0);
  std::printf("%d places: %d misses, %d stores refused\n", kPlaces, num_misses,
              num_refused);
}

// One file of tables and one of blobs per commit, and still little beside the
// payload.
TEST_F(KvCacheRecoveryTest, OneBlockPromptsCostLittleMoreThanTheirBytes) {
  Restart();
  int64_t payload_bytes = 0;
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(Store(*cache_, dense_, Prompt(i, 256)).persisted);
    payload_bytes += dense_.layout.TotalBytes(256);
  }
  const KvCache::Stats stats = cache_->stats();
  EXPECT_LE(stats.stored_bytes, payload_bytes * 1.01);
  EXPECT_LE(stats.physical_bytes, payload_bytes * 1.02);
}

TEST_F(KvCacheRecoveryTest, ForeignFilesInTheFolderAreTolerated) {
  Restart();
  ASSERT_TRUE(Store(*cache_, dense_, Prompt(1, 300)).persisted);
  cache_.reset();
  std::ofstream(dir_.Join("db/notes.txt")) << "not ours";
  std::ofstream(dir_.Join("db/999999.blob")) << "no blob file";
  Restart();
  EXPECT_EQ(CleanMatch(dense_, Prompt(1, 300)), 300);
}

}  // namespace
}  // namespace overture::cache
