#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_backend.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::LoadedTinyModel;
using ::overture::testing::RandomTokens;
using ::overture::testing::RecordedPrefill;
using ::overture::testing::RunPrefill;
using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A payload store in memory that can be told to fail or to lie.
class FaultyPayload final : public cache::PayloadStore {
 public:
  explicit FaultyPayload(std::unique_ptr<cache::PayloadStore> store)
      : store_(std::move(store)) {}
  absl::Status Put(absl::string_view key, absl::string_view value) override {
    if (full) return absl::ResourceExhaustedError("disk full");
    return store_->Put(key, value);
  }
  absl::StatusOr<std::string> Get(absl::string_view key) const override {
    auto value = store_->Get(key);
    if (value.ok() && num_gets++ >= damaged_from) value->back() ^= 1;
    return value;
  }
  absl::Status DeleteRange(absl::string_view begin,
                           absl::string_view end) override {
    return store_->DeleteRange(begin, end);
  }
  absl::Status Flush() override { return store_->Flush(); }
  absl::Status Reclaim(int64_t target_bytes) override {
    return store_->Reclaim(target_bytes);
  }
  absl::Status ForEachKey(
      const std::function<void(absl::string_view)>& fn) const override {
    return store_->ForEachKey(fn);
  }
  int64_t PhysicalBytes() const override { return store_->PhysicalBytes(); }

  std::atomic<bool> full = false;
  mutable std::atomic<int64_t> num_gets = 0;
  std::atomic<int64_t> damaged_from = int64_t{1} << 40;

 private:
  std::unique_ptr<cache::PayloadStore> store_;
};

// Writes down what it is told.
class Recorder final : public PrefillObserver {
 public:
  void Queued(int32_t ahead) override {
    events.push_back(absl::StrCat("queued ", ahead));
    if (on_queued) on_queued();
  }
  void Matched(int64_t reused, int64_t computed) override {
    events.push_back(absl::StrCat("matched ", reused, " ", computed));
  }
  void LayerDone(int32_t layers_done, int32_t num_layers) override {
    events.push_back(absl::StrCat("layer ", layers_done, "/", num_layers));
    if (on_layer) on_layer();
  }
  void FirstToken(int32_t token, float log_probability, double) override {
    events.push_back(absl::StrCat("token ", token));
    EXPECT_LE(log_probability, 0);
    if (on_token) on_token();
  }
  std::vector<std::string> events;
  std::function<void()> on_queued;
  std::function<void()> on_layer;
  std::function<void()> on_token;
};

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() : model_({}) {
    cache::Stores stores = cache::OpenMemoryStores();
    auto payload = std::make_unique<FaultyPayload>(std::move(stores.payload));
    payload_ = payload.get();
    cache_ = *cache::KvCache::Open({.max_bytes = int64_t{1} << 30},
                                   std::move(stores.meta), std::move(payload));
    engine_ = NewEngine({});
  }

  std::unique_ptr<Engine> NewEngine(EngineOptions options) {
    options.model_id = "tiny";
    auto engine = Engine::Create(options, model_.files(), Sha256Digest{},
                                 NewBackend(), cache_.get());
    EXPECT_THAT(engine, IsOk());
    return *std::move(engine);
  }
  std::unique_ptr<Backend> NewBackend() {
    auto backend = CreateCpuBackend(model_.files(), ComputeDType::kF32);
    EXPECT_THAT(backend, IsOk());
    return *std::move(backend);
  }

  // What the back end answers without any cache.
  std::vector<float> FreshLogits(const std::vector<int32_t>& tokens,
                                 const SelectorSpec& selector = {}) {
    const auto backend = NewBackend();
    auto run = RunPrefill(*backend, tokens, {.selector = selector});
    EXPECT_THAT(run, IsOk());
    return run->output.logits;
  }

  void ExpectCovers(const PrefillResult& result, int64_t num_tokens) {
    int64_t position = 0;
    for (const cache::SpanUse& use : result.spans) {
      EXPECT_EQ(use.span.token_begin, position);
      position += use.use_tokens;
    }
    EXPECT_EQ(position, num_tokens);
  }

  LoadedTinyModel model_;
  std::unique_ptr<cache::KvCache> cache_;
  FaultyPayload* payload_ = nullptr;  // cache_ owns it
  std::unique_ptr<Engine> engine_;
};

std::vector<int32_t> Joined(std::vector<int32_t> a,
                            const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

SelectorSpec SmallSegments() {
  return {.kind = SelectorSpec::Kind::kDynamic,
          .vertical_slash = {.vertical = 40, .slash = 102},
          .segment_tokens = 512};
}

// ---------------------------------------------------------------------------
// Reuse.

TEST_F(EngineTest, SecondTurnComputesOnlyItsNewTokens) {
  const std::vector<int32_t> first = RandomTokens(1000, 320, 1);
  const std::vector<int32_t> second = Joined(first, RandomTokens(200, 320, 2));
  auto cold = engine_->Prefill({.tokens = first}, nullptr);
  ASSERT_THAT(cold, IsOk());
  EXPECT_EQ(cold->stats.reused_tokens, 0);
  EXPECT_EQ(cold->logits, FreshLogits(first));
  EXPECT_TRUE(cold->persisted) << cold->store_status;
  ExpectCovers(*cold, 1000);

  auto warm = engine_->Prefill({.tokens = second}, nullptr);
  ASSERT_THAT(warm, IsOk());
  EXPECT_EQ(warm->stats.reused_tokens, 1000);
  EXPECT_EQ(warm->stats.computed_tokens, 200);
  EXPECT_EQ(warm->logits, FreshLogits(second));  // dense is exact: same bits
  ExpectCovers(*warm, 1200);
}

// The last 64 tokens are always computed: each turn takes over before the end
// of the one before it, from the third on in the middle of the match.
TEST_F(EngineTest, TurnsShorterThanTheProbeLeaveSpansThatCoverThePrompt) {
  for (const SelectorSpec& selector : {SelectorSpec{}, SmallSegments()}) {
    std::vector<int32_t> tokens = RandomTokens(300, 320, 5);
    for (uint32_t turn = 0; turn < 5; ++turn) {
      auto result =
          engine_->Prefill({.tokens = tokens, .selector = selector}, nullptr);
      ASSERT_THAT(result, IsOk());
      EXPECT_TRUE(result->persisted) << result->store_status;
      EXPECT_EQ(result->stats.reused_tokens > 0, turn > 0);
      ExpectCovers(*result, static_cast<int64_t>(tokens.size()));
      tokens = Joined(tokens, RandomTokens(30, 320, 6 + turn));
    }
  }
}

TEST_F(EngineTest, SamePromptAgainStoresNothingNew) {
  const std::vector<int32_t> tokens = RandomTokens(600, 320, 3);
  for (const SelectorSpec& selector : {SelectorSpec{}, SmallSegments()}) {
    auto cold =
        engine_->Prefill({.tokens = tokens, .selector = selector}, nullptr);
    ASSERT_THAT(cold, IsOk());
    const int64_t stored = cache_->stats().stored_bytes;
    auto warm =
        engine_->Prefill({.tokens = tokens, .selector = selector}, nullptr);
    ASSERT_THAT(warm, IsOk());
    EXPECT_GE(warm->stats.reused_tokens, 512);
    EXPECT_LE(warm->stats.reused_tokens, 600 - 64);
    EXPECT_TRUE(warm->persisted) << warm->store_status;
    EXPECT_EQ(cache_->stats().stored_bytes, stored);
    ExpectCovers(*warm, 600);
    EXPECT_EQ(warm->stats.attention_policy, PolicyText(selector));
  }
}

TEST_F(EngineTest, ResultSpansReadBackAsTheBackEndsKv) {
  const std::vector<int32_t> tokens = RandomTokens(700, 320, 4);
  const auto backend = NewBackend();
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill fresh,
                                RunPrefill(*backend, tokens));
  OVERTURE_ASSERT_OK(
      engine_
          ->Prefill({.tokens = {tokens.begin(), tokens.begin() + 300}}, nullptr)
          .status());
  auto result = engine_->Prefill({.tokens = tokens}, nullptr);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->stats.reused_tokens, 300);
  const KvLayout& layout = backend->kv_layout();
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    std::vector<std::byte> bytes(layout.LayerBytes(700));
    const MutableLayerKvView view{
        .k = bytes.data(),
        .v = bytes.data() + layout.LayerBytes(700) / 2,
        .num_rows = 700,
        .head_stride_bytes = layout.HeadBytes(700)};
    OVERTURE_ASSERT_OK(cache_->ReadLayer(layout, result->spans, layer, view));
    EXPECT_TRUE(bytes == fresh.kv.layers[layer]) << layer;
  }
}

TEST_F(EngineTest, WholeSegmentsAreReusedWithoutATrace) {
  const std::vector<int32_t> a = RandomTokens(1024, 320, 5);
  const std::vector<int32_t> ab = Joined(a, RandomTokens(300, 320, 6));
  const std::vector<int32_t> ac = Joined(a, RandomTokens(400, 320, 7));
  const SelectorSpec selector = SmallSegments();
  ASSERT_THAT(engine_->Prefill({.tokens = ab, .selector = selector}, nullptr),
              IsOk());
  auto result = engine_->Prefill({.tokens = ac, .selector = selector}, nullptr);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->stats.reused_tokens, 1024);
  EXPECT_EQ(result->logits, FreshLogits(ac, selector));
}

TEST_F(EngineTest, AWholePromptsKvServesItsOwnContinuationsAlone) {
  SelectorSpec selector = SmallSegments();
  selector.whole_prompt = true;
  const std::vector<int32_t> a = RandomTokens(1024, 320, 5);
  const std::vector<int32_t> ab = Joined(a, RandomTokens(100, 320, 6));
  const auto reused = [&](const std::vector<int32_t>& tokens) {
    auto result =
        engine_->Prefill({.tokens = tokens, .selector = selector}, nullptr);
    EXPECT_THAT(result, IsOk());
    return result.ok() ? result->stats.reused_tokens : -1;
  };
  EXPECT_EQ(reused(ab), 0);
  EXPECT_EQ(reused(Joined(a, RandomTokens(100, 320, 7))), 0);
  EXPECT_EQ(reused(a), 0);
  EXPECT_EQ(reused(Joined(ab, RandomTokens(200, 320, 8))), 1124);
}

TEST_F(EngineTest, KvOfAnotherPolicyIsNotReused) {
  const std::vector<int32_t> tokens = RandomTokens(600, 320, 8);
  ASSERT_THAT(engine_->Prefill({.tokens = tokens}, nullptr), IsOk());
  for (const SelectorSpec& selector :
       {SmallSegments(), SelectorSpec{.kind = SelectorSpec::Kind::kAShape}}) {
    auto result =
        engine_->Prefill({.tokens = tokens, .selector = selector}, nullptr);
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->stats.reused_tokens, 0);
  }
}

TEST_F(EngineTest, AnotherTenantsKvIsNotReused) {
  const std::vector<int32_t> tokens = RandomTokens(600, 320, 9);
  ASSERT_THAT(engine_->Prefill({.tokens = tokens}, nullptr), IsOk());
  auto result =
      NewEngine({.tenant_salt = "b"})->Prefill({.tokens = tokens}, nullptr);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->stats.reused_tokens, 0);
}

TEST_F(EngineTest, ReuseNoneComputesAll) {
  const std::vector<int32_t> tokens = RandomTokens(600, 320, 10);
  ASSERT_THAT(engine_->Prefill({.tokens = tokens}, nullptr), IsOk());
  auto result =
      engine_->Prefill({.tokens = tokens, .reuse = Reuse::kNone}, nullptr);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->stats.reused_tokens, 0);
  EXPECT_EQ(result->logits, FreshLogits(tokens));
}

TEST_F(EngineTest, ViewsWindowIsAlwaysComputed) {
  const std::vector<int32_t> tokens = RandomTokens(600, 320, 11);
  ASSERT_THAT(engine_->Prefill({.tokens = tokens}, nullptr), IsOk());
  auto result = engine_->Prefill(
      {.tokens = tokens, .view = {{.window = 100, .capacity = 200}}}, nullptr);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->stats.reused_tokens, 500);
  ASSERT_TRUE(result->view.has_value());
  EXPECT_EQ(result->stats.view_bytes,
            engine_->backend().kv_layout().TotalBytes(200));
  EXPECT_EQ(result->stats.kv_bytes,
            engine_->backend().kv_layout().TotalBytes(600));
}

TEST_F(EngineTest, StoreFalseHoldsTheKvForItsResultAlone) {
  const std::vector<int32_t> tokens = RandomTokens(300, 320, 12);
  {
    auto result = engine_->Prefill({.tokens = tokens, .store = false}, nullptr);
    ASSERT_THAT(result, IsOk());
    EXPECT_FALSE(result->persisted);
    EXPECT_THAT(result->store_status, IsOk());
    ASSERT_EQ(result->spans.size(), 2u);
    EXPECT_THAT(cache_->ReadRecord(engine_->backend().kv_layout(),
                                   result->spans[0].span, 0, 0),
                IsOk());
  }
  EXPECT_EQ(cache_->stats().num_spans, 0);
  EXPECT_EQ(cache_->stats().memory_bytes, 0);
}

// ---------------------------------------------------------------------------
// Damage.

TEST_F(EngineTest, DamagedRecordIsComputedAgain) {
  const std::vector<int32_t> tokens = RandomTokens(1000, 320, 13);
  ASSERT_THAT(engine_->Prefill({.tokens = tokens}, nullptr), IsOk());
  // Layer 0 reads well, layer 1 does not, whatever is read then.
  payload_->num_gets = 0;
  payload_->damaged_from = 5;
  Recorder recorder;
  auto result = engine_->Prefill({.tokens = tokens}, &recorder);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->logits, FreshLogits(tokens));
  EXPECT_EQ(recorder.events[1], "matched 936 64");
  EXPECT_GT(cache_->stats().damaged_records, 0);
  EXPECT_EQ(result->stats.reused_tokens + result->stats.computed_tokens, 1000);
  EXPECT_LT(result->stats.reused_tokens, 936);
}

TEST_F(EngineTest, FullDiskStillAnswers) {
  payload_->full = true;
  const std::vector<int32_t> tokens = RandomTokens(300, 320, 14);
  auto result = engine_->Prefill({.tokens = tokens}, nullptr);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->logits, FreshLogits(tokens));
  EXPECT_FALSE(result->persisted);
  EXPECT_FALSE(result->store_status.ok());
}

// ---------------------------------------------------------------------------
// Events and sessions.

TEST_F(EngineTest, EventsComeInOrder) {
  Recorder recorder;
  const std::vector<int32_t> tokens = RandomTokens(100, 320, 15);
  auto result = engine_->Prefill({.tokens = tokens}, &recorder);
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(recorder.events,
              ElementsAre("queued 0", "matched 0 100", "layer 1/2", "layer 2/2",
                          absl::StrCat("token ", result->first_token)));
  EXPECT_EQ(result->first_token,
            std::max_element(result->logits.begin(), result->logits.end()) -
                result->logits.begin());
}

TEST_F(EngineTest, FirstTokenComesBeforeTheCommit) {
  Recorder recorder;
  int64_t spans_then = -1;
  recorder.on_token = [&] { spans_then = cache_->stats().num_spans; };
  const std::vector<int32_t> tokens = RandomTokens(100, 320, 16);
  ASSERT_THAT(engine_->Prefill({.tokens = tokens}, &recorder), IsOk());
  EXPECT_EQ(spans_then, 0);
  EXPECT_EQ(cache_->stats().num_spans, 1);
}

TEST_F(EngineTest, SessionIsCommittedWithTheSpans) {
  const std::vector<int32_t> tokens = RandomTokens(100, 320, 17);
  bool asked = false;
  auto first =
      engine_->Prefill({.tokens = tokens,
                        .session = {{.id = "s", .bytes = "turn 1"}},
                        .may_commit_session = [&] { return asked = true; }},
                       nullptr);
  ASSERT_THAT(first, IsOk());
  EXPECT_TRUE(asked);
  EXPECT_TRUE(first->session_persisted);
  EXPECT_EQ(*cache_->GetSession("s"), "turn 1");
  // Nothing new to store: the session alone.
  ASSERT_THAT(engine_->Prefill({.tokens = tokens,
                                .session = {{.id = "s", .bytes = "turn 2"}}},
                               nullptr),
              IsOk());
  EXPECT_EQ(*cache_->GetSession("s"), "turn 2");
  ASSERT_THAT(engine_->Prefill({.tokens = tokens,
                                .store = false,
                                .session = {{.id = "s", .bytes = "turn 3"}}},
                               nullptr),
              IsOk());
  EXPECT_EQ(*cache_->GetSession("s"), "turn 3");
}

TEST_F(EngineTest, VetoAbortsAndStoresNoSession) {
  const std::vector<int32_t> tokens = RandomTokens(100, 320, 18);
  EXPECT_THAT(engine_->Prefill({.tokens = tokens,
                                .session = {{.id = "s", .bytes = "x"}},
                                .may_commit_session = [] { return false; }},
                               nullptr),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("session s")));
  EXPECT_THAT(cache_->GetSession("s"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(engine_->num_running(), 0);
}

// ---------------------------------------------------------------------------
// The queue.

// Holds the engine in its first layer until released.
class Holder {
 public:
  explicit Holder(Engine& engine) {
    recorder_.on_layer = [this] {
      if (held_) return;
      held_ = true;
      running_.count_down();
      release_.wait();
    };
    thread_ = std::jthread([this, &engine] {
      EXPECT_THAT(
          engine.Prefill({.tokens = RandomTokens(10, 320, 1), .store = false},
                         &recorder_),
          IsOk());
    });
    running_.wait();
  }
  void Release() {
    release_.count_down();
    thread_.join();
  }

 private:
  Recorder recorder_;
  bool held_ = false;
  std::latch running_{1};
  std::latch release_{1};
  std::jthread thread_;
};

TEST_F(EngineTest, FullQueueIsRefusedBeforeAnythingStarts) {
  const auto engine = NewEngine({.max_queued = 0});
  Holder holder(*engine);
  EXPECT_EQ(engine->num_running(), 1);
  Recorder recorder;
  EXPECT_THAT(engine->Prefill({.tokens = {1, 2}}, &recorder),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("queue is full")));
  EXPECT_TRUE(recorder.events.empty());
  holder.Release();
  EXPECT_THAT(engine->Prefill({.tokens = {1, 2}}, nullptr), IsOk());
}

TEST_F(EngineTest, LargerPriorityRunsFirst) {
  Holder holder(*engine_);
  std::mutex mutex;
  std::vector<int> order;
  std::vector<std::jthread> threads;
  for (const int priority : {0, 7, 3}) {
    std::latch queued(1);
    threads.emplace_back([this, priority, &mutex, &order, &queued] {
      Recorder recorder;
      recorder.on_queued = [&] { queued.count_down(); };
      // Its own first layer: the token's event comes when the next may run.
      recorder.on_layer = [&, first = true]() mutable {
        if (!std::exchange(first, false)) return;
        const std::lock_guard lock(mutex);
        order.push_back(priority);
      };
      EXPECT_THAT(engine_->Prefill({.tokens = RandomTokens(10, 320, 2),
                                    .store = false,
                                    .priority = priority},
                                   &recorder),
                  IsOk());
    });
    queued.wait();
  }
  EXPECT_EQ(engine_->num_queued(), 3);
  holder.Release();
  threads.clear();
  EXPECT_EQ(order, (std::vector<int>{7, 3, 0}));
}

TEST_F(EngineTest, StoppedWhileQueuedNeverMatches) {
  Holder holder(*engine_);
  std::stop_source stop;
  Recorder recorder;
  recorder.on_queued = [&] { stop.request_stop(); };
  EXPECT_THAT(
      engine_->Prefill({.tokens = {1, 2}, .stop = stop.get_token()}, &recorder),
      StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(recorder.events, ElementsAre("queued 1"));
  holder.Release();
}

TEST_F(EngineTest, StoppedWhileRunningStoresNothingAndFreesTheEngine) {
  std::stop_source stop;
  Recorder recorder;
  recorder.on_layer = [&] { stop.request_stop(); };
  EXPECT_THAT(engine_->Prefill({.tokens = RandomTokens(300, 320, 3),
                                .stop = stop.get_token()},
                               &recorder),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(recorder.events.back(), "layer 1/2");
  EXPECT_EQ(cache_->stats().num_spans, 0);
  EXPECT_EQ(engine_->num_running(), 0);
}

// ---------------------------------------------------------------------------
// What is refused.

TEST_F(EngineTest, RefusalsNameFieldValueAndLimit) {
  const auto engine = NewEngine({.max_prompt_tokens = 100});
  EXPECT_EQ(engine->max_prompt_tokens(), 100);
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(engine->Validate({}), StatusIs(kInvalid, HasSubstr("empty")));
  EXPECT_THAT(engine->Validate({.tokens = {1, 320}}),
              StatusIs(kInvalid, HasSubstr("tokens[1] is 320")));
  EXPECT_THAT(engine->Validate({.tokens = {-1}}),
              StatusIs(kInvalid, HasSubstr("tokens[0] is -1")));
  EXPECT_THAT(engine->Validate({.tokens = std::vector<int32_t>(101)}),
              StatusIs(absl::StatusCode::kOutOfRange,
                       HasSubstr("101 entries, limit 100")));
  SelectorSpec selector = SmallSegments();
  selector.segment_tokens = 100;
  EXPECT_THAT(engine->Validate({.tokens = {1}, .selector = selector}),
              StatusIs(kInvalid, HasSubstr("segment_tokens")));
  EXPECT_THAT(engine->Validate({.tokens = {1}, .view = {{.window = 0}}}),
              StatusIs(kInvalid, HasSubstr("window")));
  EXPECT_THAT(engine->Prefill({}, nullptr), StatusIs(kInvalid));
}

TEST_F(EngineTest, TooLittleMemoryIsToldInBytes) {
  const int64_t need = engine_->backend().WorkspaceBytes(500);
  const auto engine = NewEngine({.max_workspace_bytes = need});
  OVERTURE_EXPECT_OK(engine->Validate({.tokens = std::vector<int32_t>(500)}));
  EXPECT_THAT(engine->Prefill({.tokens = std::vector<int32_t>(501)}, nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr(absl::StrCat("limit ", need))));
}

TEST_F(EngineTest, OptionsOutsideTheModelsAreRefused) {
  for (const EngineOptions& options :
       {EngineOptions{.max_prompt_tokens = 65537},
        EngineOptions{.max_prompt_tokens = -1}, EngineOptions{.max_queued = -1},
        EngineOptions{.max_workspace_bytes = -1}}) {
    EXPECT_THAT(Engine::Create(options, model_.files(), Sha256Digest{},
                               NewBackend(), cache_.get()),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST_F(EngineTest, ChainPolicyFollowsTheSelector) {
  const cache::ChainPolicy dense = engine_->ChainPolicyFor({});
  EXPECT_EQ(dense.spans, SegmentRule::Uniform(kTokensPerBlock));
  EXPECT_TRUE(dense.token_pure);
  const cache::ChainPolicy sparse = engine_->ChainPolicyFor(SmallSegments());
  EXPECT_EQ(sparse.spans, SegmentsOf(SmallSegments()));
  EXPECT_FALSE(sparse.token_pure);
  EXPECT_NE(dense.root, sparse.root);
}

TEST_F(EngineTest, ABackEndsAttentionMayRefuseSelectorsAndMarkTails) {
  auto backend = std::make_unique<testing::FakeBackend>(
      testing::FakeBackend::Options{.fp8_attention = true});
  const testing::FakeModelFiles files(backend->config());
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const auto engine, Engine::Create({.model_id = "fake"}, files, {},
                                        std::move(backend), cache_.get()));
  OVERTURE_EXPECT_OK(engine->Validate({.tokens = {1, 2}}));
  EXPECT_THAT(
      engine->Validate({.tokens = {1, 2}, .selector = SmallSegments()}),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("vertical_slash")));
  const cache::ChainPolicy dense = engine->ChainPolicyFor({});
  EXPECT_EQ(dense.spans, SegmentRule::Uniform(kTokensPerBlock));
  EXPECT_FALSE(dense.token_pure);
}

TEST(UncachedTailTest, HoldsTheProbeAndTheWindow) {
  EXPECT_EQ(Engine::UncachedTail(std::nullopt), 64);
  EXPECT_EQ(Engine::UncachedTail({{.window = 32}}), 64);
  EXPECT_EQ(Engine::UncachedTail({{.window = 100}}), 100);
}

}  // namespace
}  // namespace overture::engine
