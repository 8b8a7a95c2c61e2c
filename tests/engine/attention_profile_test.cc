#include "engine/attention_profile.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "engine/model_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/induction_model.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace overture::engine {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::LoadedTinyModel;
using ::overture::testing::MakeInductionPrompt;
using ::overture::testing::RandomTokens;
using ::overture::testing::RunPrefill;
using ::overture::testing::WriteInductionModel;

TEST(AttentionProfiler, AHeadThatLooksOneBackIsLocal) {
  const ::overture::testing::TempDir dir;
  OVERTURE_ASSERT_OK(WriteInductionModel(dir.Join("model")));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto files,
                                LoadModelFiles(dir.Join("model")));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto backend,
                                CreateCpuBackend(*files, ComputeDType::kF32));
  const int64_t n = 1000;
  AttentionProfiler profiler(backend->config(), backend->kv_layout(), n);
  ASSERT_THAT(RunPrefill(*backend, MakeInductionPrompt(n, 500).tokens,
                         {.observer = &profiler}),
              IsOk());
  ASSERT_THAT(profiler.status(), IsOk());
  const HeadProfile& head = profiler.head(0, 0);
  // A row below 30 looks at a sink. The one logit that counts is some hundreds,
  // and so is the lse: both are rounded to 2^-24 of themselves.
  EXPECT_GT(head.shares.local + head.shares.sinks, 1 - 1e-4);
  EXPECT_GT(head.shares.local, 0.9);
  ASSERT_EQ(profiler.map_rows(), 64);
  ASSERT_EQ(profiler.map_keys(), 64);
  for (int64_t r = 0; r < 64; ++r) {
    const int64_t looked_at = std::max<int64_t>(0, profiler.rows()[r] - 1);
    for (int64_t i = 0; i < 64; ++i) {
      const bool holds = looked_at >= profiler.MapKeyBegin(i) &&
                         (i == 63 || looked_at < profiler.MapKeyBegin(i + 1));
      EXPECT_NEAR(head.map[r * 64 + i], holds ? 1 : 0, 1e-4);
    }
  }
}

TEST(AttentionProfiler, SharesAddUpAndMapsHoldAllMassWhateverTheLength) {
  const LoadedTinyModel model({});
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const auto backend, CreateCpuBackend(model.files(), ComputeDType::kBF16));
  for (const int64_t n : {1, 2, 70, 333}) {
    SCOPED_TRACE(n);
    AttentionProfiler profiler(backend->config(), backend->kv_layout(), n);
    ASSERT_THAT(
        RunPrefill(*backend, RandomTokens(n, 320, 5), {.observer = &profiler}),
        IsOk());
    ASSERT_THAT(profiler.status(), IsOk());
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (int32_t h = 0; h < backend->config().num_q_heads; ++h) {
        const HeadProfile& head = profiler.head(layer, h);
        const AttentionShares& shares = head.shares;
        EXPECT_NEAR(shares.sinks + shares.local + shares.columns +
                        shares.slashes + shares.elsewhere,
                    1, 1e-9);
        double mass = 0;
        for (const float value : head.map) mass += value;
        // Weights come from an lse that is rounded to 2^-20 of itself.
        EXPECT_NEAR(mass, static_cast<double>(profiler.map_rows()),
                    1e-5 * static_cast<double>(profiler.map_rows()));
      }
    }
  }
}

}  // namespace
}  // namespace overture::engine
