// One suite for PayloadStore and MetaStore, in memory and in RocksDB.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "cache/kv_cache.h"
#include "cache/payload_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::cache {
namespace {

using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// Bytes without a pattern, so that no layer may shrink them.
std::string Noise(uint64_t seed, size_t size) {
  std::string bytes(size, '\0');
  uint64_t x = seed * 2 + 1;
  for (char& c : bytes) {
    x = x * 6364136223846793005 + 1442695040888963407;
    c = static_cast<char>(x >> 56);
  }
  return bytes;
}

std::vector<std::string> Keys(const PayloadStore& store) {
  std::vector<std::string> keys;
  OVERTURE_EXPECT_OK(
      store.ForEachKey([&](absl::string_view key) { keys.emplace_back(key); }));
  return keys;
}

std::vector<std::pair<std::string, std::string>> Pairs(
    const MetaStore& store, absl::string_view prefix) {
  std::vector<std::pair<std::string, std::string>> pairs;
  OVERTURE_EXPECT_OK(
      store.Scan(prefix, [&](absl::string_view key, absl::string_view value) {
        pairs.emplace_back(key, value);
      }));
  return pairs;
}

class StoreTest : public ::testing::TestWithParam<bool> {
 protected:
  StoreTest() { Open(); }

  void Open() {
    stores_ = {};
    if (!GetParam()) {
      stores_ = OpenMemoryStores();
      return;
    }
    auto opened = OpenRocksDbStores(dir_.Join("db"));
    ASSERT_TRUE(opened.ok()) << opened.status();
    stores_ = *std::move(opened);
  }
  PayloadStore& payload() { return *stores_.payload; }
  MetaStore& meta() { return *stores_.meta; }

  testing::TempDir dir_;
  Stores stores_;
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "RocksDb" : "Memory";
                         });

TEST_P(StoreTest, ValuesOfEverySizeReadBackBeforeAndAfterFlush) {
  // Around RocksDB's blob threshold of 64 KiB, and beyond any record.
  const std::vector<size_t> sizes = {0,     1,        4096,          65535,
                                     65536, 1u << 20, (4u << 20) + 3};
  for (const bool flushed : {false, true}) {
    for (size_t size : sizes) {
      const std::string key = absl::StrCat("k", size, flushed);
      OVERTURE_ASSERT_OK(payload().Put(key, Noise(size, size)));
      if (flushed) {
        OVERTURE_ASSERT_OK(payload().Flush());
      }
      OVERTURE_ASSERT_OK_AND_ASSIGN(const std::string value,
                                    payload().Get(key));
      EXPECT_EQ(value, Noise(size, size));
    }
  }
}

TEST_P(StoreTest, AnAbsentKeyIsNotFound) {
  EXPECT_THAT(payload().Get("x"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(meta().Get("x"), StatusIs(absl::StatusCode::kNotFound));
}

TEST_P(StoreTest, KeysAreBytes) {
  const std::string key("\0\xff\n", 3);
  OVERTURE_ASSERT_OK(payload().Put(key, "v"));
  EXPECT_THAT(Keys(payload()), ElementsAre(key));
}

TEST_P(StoreTest, ForEachKeyIsAscendingAndCompleteAcrossPages) {
  std::vector<std::string> expected;
  for (int i = 0; i < 9000; ++i) {
    expected.push_back(absl::StrCat(100000 + i));
  }
  for (int i = 8999; i >= 0; i -= 2) {
    OVERTURE_ASSERT_OK(payload().Put(expected[i], "v"));
  }
  OVERTURE_ASSERT_OK(payload().Flush());
  for (int i = 8998; i >= 0; i -= 2) {
    OVERTURE_ASSERT_OK(payload().Put(expected[i], "v"));
  }
  EXPECT_EQ(Keys(payload()), expected);
}

TEST_P(StoreTest, DeleteRangeIsHalfOpenAndImmediate) {
  for (const char* key : {"a", "b", "c", "d"}) {
    OVERTURE_ASSERT_OK(payload().Put(key, Noise(1, 70000)));
  }
  OVERTURE_ASSERT_OK(payload().Flush());
  OVERTURE_ASSERT_OK(payload().DeleteRange("b", "d"));
  EXPECT_THAT(payload().Get("b"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(payload().Get("c"), StatusIs(absl::StatusCode::kNotFound));
  OVERTURE_EXPECT_OK(payload().Get("a"));
  OVERTURE_EXPECT_OK(payload().Get("d"));
}

TEST_P(StoreTest, DeletedBytesComeBackWithReclaim) {
  constexpr size_t kBytes = 1 << 20;
  for (int i = 0; i < 32; ++i) {
    OVERTURE_ASSERT_OK(payload().Put(absl::StrCat(100 + i), Noise(i, kBytes)));
    if (i % 8 == 7) {
      OVERTURE_ASSERT_OK(payload().Flush());
    }
  }
  EXPECT_GE(payload().PhysicalBytes(), int64_t{32} * kBytes);
  // Every other key, so that no file is garbage as a whole.
  for (int i = 0; i < 32; i += 2) {
    OVERTURE_ASSERT_OK(
        payload().DeleteRange(absl::StrCat(100 + i), absl::StrCat(101 + i)));
  }
  OVERTURE_ASSERT_OK(payload().Reclaim(/*target_bytes=*/0));
  // 16 values and less than 1% of tables.
  EXPECT_LE(payload().PhysicalBytes(), int64_t{16} * kBytes * 101 / 100);
  for (int i = 1; i < 32; i += 2) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(const std::string value,
                                  payload().Get(absl::StrCat(100 + i)));
    EXPECT_EQ(value, Noise(i, kBytes));
  }
}

TEST_P(StoreTest, ABatchPutsAndDeletes) {
  OVERTURE_ASSERT_OK(
      meta().Commit({{.key = "a", .value = "1"}, {.key = "b", .value = "2"}}));
  OVERTURE_ASSERT_OK(meta().Commit({{.key = "a", .is_delete = true},
                                    {.key = "absent", .is_delete = true},
                                    {.key = "c", .value = "3"},
                                    {.key = "c", .value = "4"}}));
  EXPECT_THAT(Pairs(meta(), ""), ElementsAre(Pair("b", "2"), Pair("c", "4")));
  OVERTURE_EXPECT_OK(meta().Commit({}));
}

TEST_P(StoreTest, AScanSeesItsPrefixAlone) {
  OVERTURE_ASSERT_OK(meta().Commit({{.key = "e1", .value = "1"},
                                    {.key = "e2", .value = "2"},
                                    {.key = "f", .value = "3"},
                                    {.key = "e\xff\xff", .value = "4"}}));
  EXPECT_THAT(Pairs(meta(), "e"), ElementsAre(Pair("e1", "1"), Pair("e2", "2"),
                                              Pair("e\xff\xff", "4")));
  EXPECT_THAT(Pairs(meta(), "x"), IsEmpty());
}

TEST_P(StoreTest, PayloadAndMetadataDoNotSeeEachOther) {
  OVERTURE_ASSERT_OK(payload().Put("k", "payload"));
  OVERTURE_ASSERT_OK(meta().Commit({{.key = "k", .value = "meta"}}));
  OVERTURE_ASSERT_OK(payload().DeleteRange("a", "z"));
  EXPECT_THAT(Pairs(meta(), ""), ElementsAre(Pair("k", "meta")));
  EXPECT_THAT(Keys(payload()), IsEmpty());
}

class RocksDbStoreTest : public StoreTest {};
INSTANTIATE_TEST_SUITE_P(Stores, RocksDbStoreTest, ::testing::Values(true));

TEST_P(RocksDbStoreTest, FlushedPayloadAndCommittedMetadataSurviveAReopen) {
  OVERTURE_ASSERT_OK(payload().Put("big", Noise(1, 200000)));
  OVERTURE_ASSERT_OK(payload().Put("small", "s"));
  OVERTURE_ASSERT_OK(payload().Flush());
  OVERTURE_ASSERT_OK(meta().Commit({{.key = "m", .value = "v"}}));
  Open();
  OVERTURE_ASSERT_OK_AND_ASSIGN(const std::string big, payload().Get("big"));
  EXPECT_EQ(big, Noise(1, 200000));
  OVERTURE_EXPECT_OK(payload().Get("small"));
  EXPECT_THAT(Pairs(meta(), ""), ElementsAre(Pair("m", "v")));
  EXPECT_GT(payload().PhysicalBytes(), 200000);
}

TEST_P(RocksDbStoreTest, TheFolderHasOneHolder) {
  EXPECT_THAT(OpenRocksDbStores(dir_.Join("db")),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_P(RocksDbStoreTest, AFolderThatCannotBeMadeIsUnavailable) {
  EXPECT_THAT(OpenRocksDbStores(dir_.Join("no/such/parent")),
              StatusIs(absl::StatusCode::kUnavailable));
  std::ofstream(dir_.Join("file")) << "x";
  EXPECT_THAT(OpenRocksDbStores(dir_.Join("file")),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_P(RocksDbStoreTest, ForeignFilesDoNotStopTheStart) {
  OVERTURE_ASSERT_OK(meta().Commit({{.key = "m", .value = "v"}}));
  stores_ = {};
  std::ofstream(dir_.Join("db/notes.txt")) << "not ours";
  std::ofstream(dir_.Join("db/999999.blob")) << "no blob file";
  std::ofstream(dir_.Join("db/999998.sst")) << "no table";
  Open();
  EXPECT_THAT(Pairs(meta(), ""), ElementsAre(Pair("m", "v")));
}

TEST_P(RocksDbStoreTest, ALostManifestIsDataLossAndSaysTheWayOut) {
  stores_ = {};
  int removed = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(dir_.Join("db"))) {
    if (absl::StartsWith(file.path().filename().string(), "MANIFEST")) {
      removed += std::filesystem::remove(file.path());
    }
  }
  ASSERT_EQ(removed, 1);
  EXPECT_THAT(
      OpenRocksDbStores(dir_.Join("db")),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("move the folder away")));
}

// A tmpfs has no O_DIRECT: the store must say so and go on buffered.
TEST_P(RocksDbStoreTest, WorksWhereDirectIoIsNotSupported) {
  char path[] = "/dev/shm/overture-store-XXXXXX";
  if (mkdtemp(path) == nullptr) GTEST_SKIP() << "no writable /dev/shm";
  {
    OVERTURE_ASSERT_OK_AND_ASSIGN(Stores stores,
                                  OpenRocksDbStores(absl::StrCat(path, "/db")));
    OVERTURE_EXPECT_OK(stores.payload->Put("k", Noise(1, 100000)));
    OVERTURE_EXPECT_OK(stores.payload->Flush());
    OVERTURE_EXPECT_OK(stores.payload->Get("k"));
  }
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace overture::cache
