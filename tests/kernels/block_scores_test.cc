#include "kernels/selectors/block_scores.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/block_problem.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using testing::BlockProblem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int> Kept(const std::vector<float>& scores, const BlockRule& rule) {
  const std::vector<bool> keep = KeepBlocks(scores, rule);
  EXPECT_EQ(keep.size(), scores.size());
  std::vector<int> kept;
  for (size_t i = 0; i < keep.size(); ++i) {
    if (keep[i]) kept.push_back(static_cast<int>(i));
  }
  return kept;
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(KeepBlocksTest, AThresholdIsAFactorOfTheLargest) {
  const std::vector<float> scores = {3, 5, 2.9f, -7, 4};
  EXPECT_THAT(Kept(scores, {.threshold = 0.25f}), ElementsAre(0, 1, 4));
  EXPECT_THAT(Kept(scores, {.threshold = 1}), ElementsAre(1));
  EXPECT_THAT(Kept(scores, {.threshold = 1e-6f}), ElementsAre(0, 1, 2, 3, 4));
}

TEST(KeepBlocksTest, ACountTakesTheBestAndOfEqualsTheFirst) {
  EXPECT_THAT(Kept({1, 3, 3, 2, 3}, {.count = 2}), ElementsAre(1, 2));
  EXPECT_THAT(Kept({-0.0f, 0.0f, -1}, {.count = 1}), ElementsAre(0));
  EXPECT_THAT(Kept({1, 3}, {.count = 5}), ElementsAre(0, 1));
  EXPECT_THAT(Kept({}, {.count = 5}), IsEmpty());
}

TEST(KeepBlocksTest, BothKeepTheBestOfWhatTheThresholdKeeps) {
  const std::vector<float> scores = {3, 5, 2.9f, -7, 4};
  EXPECT_THAT(Kept(scores, {.threshold = 0.25f, .count = 2}),
              ElementsAre(1, 4));
  EXPECT_THAT(Kept(scores, {.threshold = 0.25f, .count = 4}),
              ElementsAre(0, 1, 4));
}

TEST(KeepBlocksTest, NothingWithoutARule) {
  EXPECT_THAT(Kept({1, 2}, {}), IsEmpty());
  EXPECT_THAT(Kept({1, 2}, {.correct_means = true}), IsEmpty());
}

TEST(KeepBlocksTest, ANanRanksLastAndPassesNoThreshold) {
  EXPECT_THAT(Kept({kNan, -9, -kNan, -8}, {.count = 2}), ElementsAre(1, 3));
  EXPECT_THAT(Kept({kNan, -9, -kNan, -8}, {.count = 3}), ElementsAre(0, 1, 3));
  EXPECT_THAT(Kept({kNan, -9, -8}, {.threshold = 0.1f}), ElementsAre(1, 2));
  EXPECT_THAT(Kept({kNan, kNan}, {.threshold = 0.1f}), IsEmpty());
  EXPECT_THAT(Kept({kInfinity, 3}, {.threshold = 0.1f}), ElementsAre(0));
}

// Scores and choice against loops in double.
void ExpectEqualsTheLoops(const BlockProblem& problem,
                          const std::vector<BlockRule>& rules) {
  const BlockScoreParams& p = problem.params();
  const int64_t num_blocks = p.num_blocks();
  std::vector<float> scores(p.num_q_heads * p.num_q_tiles() * num_blocks, kNan);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const BlockSets sets,
                                ChooseBlocksCpu(p, rules, scores.data()));
  ASSERT_EQ(sets.num_q_tiles, p.num_q_tiles());
  for (int64_t head = 0; head < p.num_q_heads; ++head) {
    for (int64_t tile = 0; tile < p.num_q_tiles(); ++tile) {
      const int64_t cell = head * p.num_q_tiles() + tile;
      SCOPED_TRACE(absl::StrCat("head ", head, " tile ", tile));
      const int64_t before = p.first_tile_begin() / kBlockTileRows + tile;
      std::vector<float> of_tile;
      for (int64_t block = 0; block < before; ++block) {
        const float score = scores[cell * num_blocks + block];
        if (!rules[head].IsOn()) {
          ASSERT_TRUE(std::isnan(score));
          continue;
        }
        ASSERT_NEAR(score, problem.Score(head, tile, block),
                    problem.Tolerance())
            << "block " << block;
        of_tile.push_back(score);
      }
      const std::vector<bool> keep = KeepBlocks(of_tile, rules[head]);
      for (int64_t bit = 0; bit < sets.num_words * 32; ++bit) {
        const int64_t block = before - bit;
        ASSERT_EQ(sets.Has(cell, bit),
                  rules[head].IsOn() && bit > 0 && block >= 0 && keep[block])
            << "bit " << bit;
      }
    }
  }
}

TEST(ChooseBlocksCpuTest, EqualsTheLoopsAtAnyLengthAndOffset) {
  const std::vector<BlockRule> rules = {
      {.threshold = 0.5f}, {}, {.count = 3}, {.threshold = 0.1f, .count = 2}};
  for (const auto& [q_begin, q_len] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1},
                                                {0, 128},
                                                {0, 129},
                                                {127, 1},
                                                {128, 1},
                                                {500, 700},
                                                {4097, 127},
                                                {5000, 1}}) {
    SCOPED_TRACE(absl::StrCat("q_begin ", q_begin, " q_len ", q_len));
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      ASSERT_NO_FATAL_FAILURE(ExpectEqualsTheLoops(
          BlockProblem({.dtype = dtype, .q_begin = q_begin, .q_len = q_len}),
          rules));
    }
  }
}

TEST(ChooseBlocksCpuTest, LargeLogitsNeitherOverflowNorVanish) {
  ASSERT_NO_FATAL_FAILURE(
      ExpectEqualsTheLoops(BlockProblem({.q_len = 600, .q_size = 400}),
                           std::vector<BlockRule>(4, {.threshold = 0.1f})));
}

TEST(ChooseBlocksCpuTest, BeyondTheBestSuperBlocksNoneIsScored) {
  // A tile that begins after 70 super-blocks and 5 blocks.
  const int64_t before = 70 * kBlocksPerSuperBlock + 5;
  const BlockProblem problem({.num_q_heads = 2,
                              .num_kv_heads = 1,
                              .head_dim = 16,
                              .q_begin = before * kBlockTileRows,
                              .q_len = 100});
  const std::vector<BlockRule> rules = {{.threshold = 0.2f}, {.count = 40}};
  std::vector<float> scores(2 * before, kNan);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const BlockSets sets,
      ChooseBlocksCpu(problem.params(), rules, scores.data()));
  for (int64_t head = 0; head < 2; ++head) {
    std::vector<double> supers(70);
    for (int64_t i = 0; i < 70; ++i) supers[i] = problem.SuperScore(head, 0, i);
    std::vector<double> sorted = supers;
    std::sort(sorted.begin(), sorted.end(), std::greater<double>());
    std::vector<float> scored;
    std::vector<int64_t> blocks;
    for (int64_t i = 0; i <= 70; ++i) {
      const int64_t begin = i * kBlocksPerSuperBlock;
      const int64_t end = std::min(begin + kBlocksPerSuperBlock, before);
      // The unfinished one is always scored; of the others 64, none of which
      // may be worse than the 64th but for rounding.
      const bool is_scored = !std::isnan(scores[head * before + begin]);
      if (i < 70 && is_scored) {
        ASSERT_GE(supers[i], sorted[63] - 2 * problem.Tolerance());
      } else if (i < 70) {
        ASSERT_LE(supers[i], sorted[63] + 2 * problem.Tolerance());
      } else {
        ASSERT_TRUE(is_scored);
      }
      for (int64_t block = begin; block < end; ++block) {
        const float score = scores[head * before + block];
        ASSERT_EQ(std::isnan(score), !is_scored) << block;
        if (!is_scored) continue;
        ASSERT_NEAR(score, problem.Score(head, 0, block), problem.Tolerance());
        scored.push_back(score);
        blocks.push_back(block);
      }
    }
    ASSERT_EQ(scored.size(), kMaxScoredSuperBlocks * kBlocksPerSuperBlock + 5u);
    const std::vector<bool> keep = KeepBlocks(scored, rules[head]);
    int64_t kept = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      ASSERT_EQ(sets.Has(head, before - blocks[i]), keep[i]);
      kept += keep[i];
    }
    int64_t bits = 0;
    for (int64_t bit = 0; bit <= before; ++bit) bits += sets.Has(head, bit);
    EXPECT_EQ(bits, kept);
  }
}

TEST(ChooseBlocksCpuTest, ATileSeesTheSameWhereverAPrefillResumed) {
  const BlockProblem whole({.q_len = 1000});
  const std::vector<BlockRule> rules(4, {.threshold = 0.5f, .count = 5});
  OVERTURE_ASSERT_OK_AND_ASSIGN(const BlockSets want,
                                ChooseBlocksCpu(whole.params(), rules));
  BlockScoreParams resumed = whole.params();
  resumed.q_begin = 512;
  resumed.q_len = 1000 - 512;
  resumed.q =
      static_cast<const BFloat16*>(resumed.q) + 512 * resumed.stride_q_row;
  OVERTURE_ASSERT_OK_AND_ASSIGN(const BlockSets got,
                                ChooseBlocksCpu(resumed, rules));
  for (int64_t head = 0; head < 4; ++head) {
    for (int64_t tile = 0; tile < got.num_q_tiles; ++tile) {
      for (int64_t bit = 0; bit < 32; ++bit) {
        ASSERT_EQ(got.Has(head * got.num_q_tiles + tile, bit),
                  want.Has(head * want.num_q_tiles + tile + 4, bit));
      }
    }
  }
}

TEST(ChooseBlocksCpuTest, RefusesWhatDoesNotFit) {
  const BlockProblem problem({.q_len = 300});
  const std::vector<BlockRule> rules(4);
  const auto refuses = [&](const char* message, auto change) {
    BlockScoreParams params = problem.params();
    std::vector<BlockRule> changed = rules;
    change(params, changed);
    EXPECT_THAT(
        ChooseBlocksCpu(params, changed),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  using P = BlockScoreParams;
  using R = std::vector<BlockRule>;
  refuses("dtype is f16", [](P& p, R&) { p.dtype = DType::kF16; });
  refuses("num_q_heads is 4", [](P& p, R&) { p.num_kv_heads = 3; });
  refuses("head_dim is 0", [](P& p, R&) { p.head_dim = 0; });
  refuses("scale is -1", [](P& p, R&) { p.scale = -1; });
  refuses("q_begin is -1", [](P& p, R&) { p.q_begin = -1; });
  refuses("q_len is 0", [](P& p, R&) { p.q_len = 0; });
  refuses("q_begin is", [](P& p, R&) { p.q_begin = int64_t{1} << 31; });
  refuses("q is null", [](P& p, R&) { p.q = nullptr; });
  refuses("k_means is null", [](P& p, R&) { p.k_means = nullptr; });
  refuses("super_means is null", [](P& p, R&) {
    p.q_begin = (kMaxScoredSuperBlocks + 1) * kSuperBlockKeys;
    p.super_means = nullptr;
  });
  refuses("rules is 3", [](P&, R& rules) { rules.pop_back(); });
  refuses("threshold is 1.5", [](P&, R& r) { r[1].threshold = 1.5f; });
  refuses("threshold is nan", [](P&, R& r) { r[1].threshold = kNan; });
  refuses("count is -1", [](P&, R& r) { r[3].count = -1; });
}

}  // namespace
}  // namespace overture::kernels
