// An engine whose back end loses its device.
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_backend.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::FakeBackend;
using ::overture::testing::FakeModelFiles;
using ::overture::testing::Gate;
using ::overture::testing::IsOk;
using ::overture::testing::RandomTokens;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

class HealthTest : public ::testing::Test {
 protected:
  HealthTest() {
    cache::Stores stores = cache::OpenMemoryStores();
    cache_ = *cache::KvCache::Open({.max_bytes = int64_t{1} << 30},
                                   std::move(stores.meta),
                                   std::move(stores.payload));
    auto backend = std::make_unique<FakeBackend>(
        FakeBackend::Options{.gate = &gate_, .device_fault = &device_fault_});
    const FakeModelFiles files(backend->config());
    auto engine =
        Engine::Create({}, files, {}, std::move(backend), cache_.get());
    EXPECT_THAT(engine, IsOk());
    engine_ = *std::move(engine);
  }

  absl::StatusOr<PrefillResult> Prefill(const std::vector<int32_t>& tokens) {
    return engine_->Prefill({.tokens = tokens}, nullptr);
  }
  int64_t NumStored(const std::vector<int32_t>& tokens) {
    int64_t stored = 0;
    for (const cache::SpanUse& use :
         cache_->Lookup(engine_->ChainPolicyFor({}), tokens, tokens.size())) {
      stored += use.use_tokens;
    }
    return stored;
  }

  Gate gate_;
  std::atomic<bool> device_fault_ = false;
  std::unique_ptr<cache::KvCache> cache_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(HealthTest, ALostDeviceFailsItsPrefillAndRefusesEveryLaterOne) {
  const std::vector<int32_t> tokens = RandomTokens(600, 1000, 1);
  OVERTURE_ASSERT_OK(Prefill(tokens).status());
  OVERTURE_EXPECT_OK(engine_->Health());
  device_fault_ = true;
  std::vector<int32_t> longer = tokens;
  longer.resize(900, 5);
  EXPECT_THAT(Prefill(longer), StatusIs(absl::StatusCode::kInternal,
                                        HasSubstr("met a bad address")));
  device_fault_ = false;  // it stays lost all the same
  EXPECT_THAT(engine_->Health(), StatusIs(kUnavailable));
  EXPECT_THAT(engine_->Validate({.tokens = tokens}),
              StatusIs(kUnavailable, HasSubstr("the fake device is lost")));
  EXPECT_THAT(Prefill(tokens),
              StatusIs(kUnavailable, HasSubstr("the fake device is lost")));
}

TEST_F(HealthTest, NothingOfThePrefillThatFailedIsStored) {
  const std::vector<int32_t> tokens = RandomTokens(600, 1000, 1);
  OVERTURE_ASSERT_OK(Prefill(tokens).status());
  std::vector<int32_t> longer = tokens;
  longer.resize(1500, 5);
  device_fault_ = true;
  // Layer 0 was handed out before the device went.
  EXPECT_THAT(Prefill(longer), StatusIs(absl::StatusCode::kInternal));
  EXPECT_EQ(NumStored(longer), 600);
  EXPECT_EQ(NumStored(tokens), 600);
}

TEST_F(HealthTest, WhoWaitsBehindTheFailureIsToldWhy) {
  gate_.Close();
  absl::Status meets, waits;
  std::thread first(
      [&] { meets = Prefill(RandomTokens(300, 1000, 2)).status(); });
  gate_.AwaitArrival();
  std::thread second(
      [&] { waits = Prefill(RandomTokens(300, 1000, 3)).status(); });
  while (engine_->num_queued() < 1) std::this_thread::yield();
  device_fault_ = true;
  gate_.Open();
  first.join();
  second.join();
  EXPECT_THAT(meets, StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(waits, StatusIs(kUnavailable, HasSubstr("device is lost")));
}

}  // namespace
}  // namespace overture::engine
