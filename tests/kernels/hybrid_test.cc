#include "kernels/selectors/hybrid.h"

#include <algorithm>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/selectors/vertical_slash.h"
#include "tests/kernels/plan_cover.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;
using testing::PlanCover;

// Every head's index holds what `chance` says, and distance 0.
std::vector<VerticalSlashIndex> RandomIndices(int64_t heads, int64_t kv_len,
                                              double chance,
                                              std::mt19937& random) {
  std::bernoulli_distribution take(chance);
  std::vector<VerticalSlashIndex> indices(heads);
  for (VerticalSlashIndex& index : indices) {
    index.slashes.push_back(0);
    for (int32_t i = 0; i < kv_len; ++i) {
      if (take(random)) index.verticals.push_back(i);
      if (i > 0 && take(random)) index.slashes.push_back(i);
    }
  }
  return indices;
}

TilePlan MakePlan(int64_t q_begin, int64_t q_len, int64_t kv_len,
                  const std::vector<VerticalSlashIndex>& indices) {
  auto plan = BuildVerticalSlashPlan({.q_begin = q_begin,
                                      .q_len = q_len,
                                      .kv_len = kv_len,
                                      .tile_rows = kBlockTileRows,
                                      .tile_keys = 64},
                                     indices, RangeForm::kAligned);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

BlockSets RandomSets(const TilePlan& plan, double chance,
                     std::mt19937& random) {
  std::bernoulli_distribution take(chance);
  BlockSets sets{.q_begin = plan.q_begin,
                 .q_len = plan.q_len,
                 .num_heads = plan.num_lists,
                 .num_q_tiles = plan.num_q_tiles(),
                 .num_words = BlockWords((plan.q_begin + plan.q_len - 1) /
                                         kMeanBlockKeys)};
  sets.bits.resize(plan.num_cells() * sets.num_words);
  for (int64_t cell = 0; cell < plan.num_cells(); ++cell) {
    const int64_t before =
        plan.first_tile_begin() / kMeanBlockKeys + cell % plan.num_q_tiles();
    for (int64_t bit = 1; bit <= before; ++bit) {
      if (take(random)) {
        sets.bits[cell * sets.num_words + bit / 32] |= 1u << (bit % 32);
      }
    }
  }
  return sets;
}

// Valid, and every pair is there once if the plan or a block has it, else not
// at all; a block is corrected if and only if it is whole and nothing of it is.
void ExpectUnion(const TilePlan& plan, const BlockSets& sets,
                 const std::vector<BlockRule>& rules) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const TilePlan united,
                                AddBlocks(plan, sets, rules));
  OVERTURE_ASSERT_OK(Validate(united));
  const int64_t tiles = plan.num_q_tiles();
  for (int64_t list = 0; list < plan.num_lists; ++list) {
    SCOPED_TRACE(absl::StrCat("list ", list));
    const PlanCover before(plan, list);
    const PlanCover after(united, list);
    for (int64_t row = plan.q_begin; row < plan.q_begin + plan.q_len; ++row) {
      const int64_t tile = row / kBlockTileRows;
      const int64_t cell =
          list * tiles + tile - plan.first_tile_begin() / kBlockTileRows;
      for (int64_t key = 0; key <= row; ++key) {
        const int64_t bit = tile - key / kMeanBlockKeys;
        const bool kept = before.Count(row, key) > 0 || sets.Has(cell, bit);
        ASSERT_EQ(after.Count(row, key), kept)
            << "row " << row << " key " << key;
      }
    }
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t s = plan.first_tile_begin() + tile * kBlockTileRows;
      // Any real row of the tile: all see the keys before s alike.
      const int64_t row = std::max(s, plan.q_begin);
      std::vector<bool> corrected(s / kMeanBlockKeys);
      if (!united.mean_offsets.empty()) {
        const int64_t cell = list * tiles + tile;
        for (int64_t i = united.mean_offsets[cell];
             i < united.mean_offsets[cell + 1]; ++i) {
          const BlockInterval& blocks = united.mean_blocks[i];
          for (int32_t b = 0; b < blocks.count; ++b) {
            corrected.at(blocks.begin + b) = true;
          }
        }
      }
      for (int64_t block = 0; block < s / kMeanBlockKeys; ++block) {
        bool any = false;
        for (int64_t i = 0; i < kMeanBlockKeys; ++i) {
          any = any || after.Count(row, block * kMeanBlockKeys + i) > 0;
        }
        ASSERT_EQ(corrected[block], rules[list].correct_means && !any)
            << "tile " << tile << " block " << block;
      }
    }
  }
}

TEST(AddBlocksTest, IsTheUnionAtAnyLengthAndOffset) {
  std::mt19937 random(1);
  const std::vector<BlockRule> rules = {{}, {.correct_means = true}};
  for (const auto& [q_begin, q_len, kv_len] :
       std::vector<std::tuple<int64_t, int64_t, int64_t>>{{0, 1, 1},
                                                          {0, 63, 63},
                                                          {0, 128, 128},
                                                          {0, 129, 129},
                                                          {0, 1000, 1000},
                                                          {127, 1, 128},
                                                          {128, 1, 129},
                                                          {777, 1, 778},
                                                          {700, 333, 1033},
                                                          {256, 300, 1000}}) {
    for (const double chance : {0.0, 0.003, 0.02}) {
      SCOPED_TRACE(absl::StrCat(q_begin, " ", q_len, " ", kv_len, " ", chance));
      const TilePlan plan = MakePlan(q_begin, q_len, kv_len,
                                     RandomIndices(2, kv_len, chance, random));
      for (const double blocks : {0.0, 0.3, 1.0}) {
        ASSERT_NO_FATAL_FAILURE(
            ExpectUnion(plan, RandomSets(plan, blocks, random), rules));
      }
    }
  }
}

TEST(AddBlocksTest, IsTheUnionAtEveryResidueOfAPrefix) {
  std::mt19937 random(2);
  for (int64_t q_begin = 256; q_begin < 256 + kBlockTileRows; q_begin += 3) {
    SCOPED_TRACE(q_begin);
    const int64_t kv_len = q_begin + 150;
    const TilePlan plan =
        MakePlan(q_begin, 150, kv_len, RandomIndices(1, kv_len, 0.01, random));
    ASSERT_NO_FATAL_FAILURE(ExpectUnion(plan, RandomSets(plan, 0.4, random),
                                        {{.correct_means = true}}));
  }
}

TEST(AddBlocksTest, WithoutBlocksThePlanStaysAsItIs) {
  std::mt19937 random(3);
  const TilePlan plan =
      MakePlan(300, 700, 1000, RandomIndices(3, 1000, 0.01, random));
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const TilePlan same,
      AddBlocks(plan, RandomSets(plan, 0, random), std::vector<BlockRule>(3)));
  EXPECT_EQ(same.ranges, plan.ranges);
  EXPECT_EQ(same.range_offsets, plan.range_offsets);
  EXPECT_EQ(same.intervals, plan.intervals);
  EXPECT_EQ(same.interval_offsets, plan.interval_offsets);
  EXPECT_EQ(same.columns, plan.columns);
  EXPECT_TRUE(same.mean_offsets.empty());
}

TEST(AddBlocksTest, RefusesWhatDoesNotFit) {
  std::mt19937 random(4);
  const TilePlan plan =
      MakePlan(0, 300, 300, RandomIndices(2, 300, 0.1, random));
  const BlockSets sets = RandomSets(plan, 0.5, random);
  const auto refuses = [&](const char* message, auto change) {
    TilePlan changed = plan;
    std::vector<BlockRule> rules(2);
    change(changed, rules);
    EXPECT_THAT(
        AddBlocks(changed, sets, rules),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  using R = std::vector<BlockRule>;
  refuses("64 x 64", [](TilePlan& p, R&) { p.tile_rows = 64; });
  refuses("do not fit", [](TilePlan& p, R&) { p.q_len = 299; });
  refuses("do not fit", [](TilePlan& p, R&) { p.num_lists = 3; });
  refuses("rules has 1 heads", [](TilePlan&, R& r) { r.pop_back(); });
}

}  // namespace
}  // namespace overture::kernels
