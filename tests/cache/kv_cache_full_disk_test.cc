// A real full disk: a small file system of the test's own. Reads go on, writes
// are dropped, and resume in the same process once there is space.
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "cache/kv_cache.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache/cache_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::cache {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

class KvCacheFullDiskTest : public ::testing::Test {
 protected:
  // Once, before RocksDB starts threads: they keep the namespace that they are
  // made in. The mounts live and die with this process.
  static void SetUpTestSuite() {
    has_namespace_ =
        (unshare(CLONE_NEWNS) == 0 ||
         unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  }
  void SetUp() override {
    if (!has_namespace_ ||
        mount("tmpfs", dir_.path().c_str(), "tmpfs", 0, "size=256m") != 0) {
      GTEST_SKIP() << "cannot mount a tmpfs: " << std::strerror(errno);
    }
    auto stores = OpenRocksDbStores(dir_.Join("db"));
    ASSERT_TRUE(stores.ok()) << stores.status();
    // A limit that the disk does not keep.
    auto cache =
        KvCache::Open({.max_bytes = int64_t{1} << 40}, std::move(stores->meta),
                      std::move(stores->payload));
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }
  void TearDown() override {
    cache_.reset();
    umount2(dir_.path().c_str(), MNT_DETACH);
  }

  int64_t FreeBytes() {
    struct statvfs fs;
    EXPECT_EQ(statvfs(dir_.path().c_str(), &fs), 0);
    return static_cast<int64_t>(fs.f_bavail * fs.f_frsize);
  }
  void AddBallast(int64_t bytes) {
    std::ofstream(dir_.Join("ballast"), std::ios::app)
        << std::string(bytes, 'x');
  }
  void DropBallast() { std::filesystem::remove(dir_.Join("ballast")); }

  void ExpectClean(uint64_t seed) {
    const auto tokens = Prompt(seed, 1024);
    const PrefixMatch match = cache_->Match(policy_, tokens, 1024);
    EXPECT_EQ(match.num_tokens, 1024);
    OVERTURE_EXPECT_OK(CheckCanary(*cache_, policy_, match.spans, tokens));
  }

  static inline bool has_namespace_ = false;
  const ChainPolicy policy_ = DensePolicy(kBlobLayout);
  testing::TempDir dir_;
  std::unique_ptr<KvCache> cache_;
};

TEST_F(KvCacheFullDiskTest, WritesStopBeforeTheDiskIsFullAndResume) {
  AddBallast(FreeBytes() / 2);
  uint64_t num_stored = 0;
  for (;; ++num_stored) {
    ASSERT_LT(num_stored, 400u);
    const auto tokens = Prompt(num_stored, 1024);
    const CommitResult result = Store(*cache_, policy_, tokens);
    if (result.persisted) continue;
    EXPECT_TRUE(result.readable);
    EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kResourceExhausted,
                                        HasSubstr("bytes free")));
    break;
  }
  EXPECT_GT(num_stored, 3u);
  EXPECT_GT(FreeBytes(), int64_t{1} << 20);  // metadata still fits
  for (uint64_t seed = 0; seed < num_stored; ++seed) ExpectClean(seed);
  OVERTURE_EXPECT_OK(cache_->PutSession("chat", "goes on"));

  DropBallast();
  EXPECT_TRUE(Store(*cache_, policy_, Prompt(999, 1024)).persisted);
  ExpectClean(999);
  ExpectClean(0);
}

TEST_F(KvCacheFullDiskTest, AStartOnAFullDiskIsRefusedUntilThereIsSpace) {
  cache_.reset();
  AddBallast(FreeBytes());
  EXPECT_THAT(OpenRocksDbStores(dir_.Join("db")),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("a start needs free space")));
  DropBallast();
  OVERTURE_EXPECT_OK(OpenRocksDbStores(dir_.Join("db")));
}

TEST_F(KvCacheFullDiskTest, AFlushThatMeetsAFullDiskIsSurvived) {
  ASSERT_TRUE(Store(*cache_, policy_, Prompt(1, 1024)).persisted);
  const auto tokens = Prompt(2, 1024);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto writer, cache_->NewWriter(policy_, PlanSpans(policy_, {}, tokens)));
  for (int32_t layer = 0; layer < policy_.layout.num_layers; ++layer) {
    const CanaryLayer kv(policy_.layout, tokens, layer);
    writer->PutLayer(layer, kv.view());
  }
  // Someone else takes the rest.
  AddBallast(FreeBytes());
  {
    const CommitResult result = writer->Commit({});
    EXPECT_FALSE(result.persisted);
    EXPECT_TRUE(result.readable);
    ExpectClean(1);
  }
  DropBallast();
  // RocksDB looks for space every 5 s, and tells nobody when it found some:
  // requests are dropped until then, and this asks again.
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(40);
  bool persisted = false;
  while (!persisted && std::chrono::steady_clock::now() < deadline) {
    persisted = Store(*cache_, policy_, tokens).persisted;
    if (!persisted) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(persisted);
  ExpectClean(1);
  ExpectClean(2);
}

}  // namespace
}  // namespace overture::cache
