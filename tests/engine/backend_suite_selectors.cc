// The part of BackendSuite that is about kinds of selectors, and that what they
// choose depends on nothing behind a segment.
#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "tests/engine/backend_suite.h"
#include "tests/support/naive_llama.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::LoadedTinyModel;
using ::overture::testing::NaivePair;
using ::overture::testing::RandomTokens;
using ::overture::testing::RecordedPrefill;
using ::overture::testing::RunPrefill;

using Kind = SelectorSpec::Kind;

SelectorSpec BestTiles(Kind kind, float density) {
  return {.kind = kind, .block_density = density, .segment_tokens = 256};
}

SelectorSpec TriShape(int32_t num_last) {
  return {.kind = Kind::kTriShape,
          .num_initial = 64,
          .num_local = 100,
          .num_last = num_last,
          .segment_tokens = 256};
}

std::vector<int32_t> Joined(std::vector<int32_t> a,
                            const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_P(BackendSuite, WhatFollowsASegmentDoesNotChangeItsKv) {
  SelectorSpec dense_first = VerticalSlash(40, 102, 256);
  dense_first.dense_until = 512;
  SelectorSpec adaptive = VerticalSlash(200, 400, 256);
  adaptive.vertical_slash.mass = 0.5f;
  const LoadedTinyModel model(Tiny({.num_layers = 3}));
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> shared = RandomTokens(768, 320, 21);
  for (const SelectorSpec& selector :
       {SelectorSpec(), VerticalSlash(40, 102, 256), adaptive, dense_first,
        Hybrid(40, 102, 0.5f, 256), TriShape(33),
        BestTiles(Kind::kRandomBlocks, 0.3f), BestTiles(Kind::kOracle, 0.3f)}) {
    if (!Runs(selector)) continue;
    SCOPED_TRACE(PolicyText(selector));
    // Tails of one token and of more than a segment; where the bits of a row
    // depend on how many are computed with it, of equal lengths.
    const int64_t other = GetParam().bitwise ? 1 : 300;
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const RecordedPrefill first,
        RunPrefill(*backend, Joined(shared, RandomTokens(300, 320, 22)),
                   {.selector = selector}));
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const RecordedPrefill second,
        RunPrefill(*backend, Joined(shared, RandomTokens(other, 320, 23)),
                   {.selector = selector}));
    EXPECT_NE(first.output.logits, second.output.logits);
    for (int32_t layer = 0; layer < 3; ++layer) {
      EXPECT_TRUE(first.kv.Rows(layer, 768) == second.kv.Rows(layer, 768))
          << "layer " << layer;
    }
  }
}

TEST_P(BackendSuite, AWholePromptIsChosenForByItsEnd) {
  SelectorSpec selector = VerticalSlash(40, 102, 256);
  selector.whole_prompt = true;
  if (!Runs(selector)) GTEST_SKIP() << "no vertical-slash";
  const LoadedTinyModel model(Tiny({.qk_gain = 1}));
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> shared = RandomTokens(768, 320, 21);
  std::vector<std::byte> rows[2];
  for (const uint32_t seed : {0, 1}) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const RecordedPrefill run,
        RunPrefill(*backend, Joined(shared, RandomTokens(300, 320, seed)),
                   {.selector = selector}));
    EXPECT_LT(run.output.density, 0.8);
    rows[seed] = run.kv.Rows(1, 768);
  }
  EXPECT_FALSE(rows[0] == rows[1]);
}

TEST_P(BackendSuite, TheLastRowsOfEverySegmentMakeATriShape) {
  const SelectorSpec selector = TriShape(33);
  if (!Runs(selector)) GTEST_SKIP() << "no tri-shape";
  const int64_t tile_rows = GetParam().tile_rows;
  // Segments [0, 256) and [256, 500); a tile is dense as a whole.
  ExpectEqualsNaive({}, 500, selector, [=](const NaivePair& at) {
    const int64_t s = at.q / tile_rows * tile_rows;
    const int64_t segment_end = at.q < 256 ? 256 : 500;
    return std::min(s + tile_rows, segment_end) > segment_end - 33 ||
           at.k < 64 || at.k >= (s - 99) / 64 * 64;
  });
}

TEST_P(BackendSuite, WhatEndsAtDenseUntilIsDense) {
  SelectorSpec selector{.kind = Kind::kAShape,
                        .num_initial = 64,
                        .num_local = 100,
                        .dense_until = 256};
  if (!Runs(selector)) GTEST_SKIP() << "no dense_until";
  const int64_t tile_rows = GetParam().tile_rows;
  ExpectEqualsNaive({}, 500, selector, [=](const NaivePair& at) {
    const int64_t s = at.q / tile_rows * tile_rows;
    return at.q < 256 || at.k < 64 || at.k >= (s - 99) / 64 * 64;
  });
  // Whole segments, the unfinished one of a prompt among them.
  for (SelectorSpec chosen : {TriShape(1), VerticalSlash(1, 1, 256)}) {
    chosen.dense_until = 512;
    if (Runs(chosen)) ExpectEqualsNaive({}, 500, chosen);
  }
}

TEST_P(BackendSuite, TheBestTilesKeepMoreThanRandomOnesOfEqualDensity) {
  const LoadedTinyModel model(Tiny());
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> tokens = RandomTokens(1000, 320, 5);
  double kept[2] = {};
  double density[2] = {};
  for (const Kind kind : {Kind::kRandomBlocks, Kind::kOracle}) {
    SelectorSpec selector = BestTiles(kind, 0.3f);
    if (!Runs(selector)) GTEST_SKIP() << "none of them";
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const RecordedPrefill run,
        RunPrefill(*backend, tokens, {.selector = selector, .audit_rows = 64}));
    density[kind == Kind::kOracle] = run.output.density;
    kept[kind == Kind::kOracle] = Summarize(run.output.audit).mean;
    selector.block_density = 1;
    ExpectEqualsNaive({}, 300, selector);
  }
  EXPECT_LT(density[0], 0.6);  // of a query tile's own rows all tiles are kept
  EXPECT_EQ(density[0], density[1]);
  if (kept[1] < 1) {  // audited
    EXPECT_GT(kept[1], kept[0]);
    EXPECT_GT(kept[0], 0);
  }
}

}  // namespace overture::engine
