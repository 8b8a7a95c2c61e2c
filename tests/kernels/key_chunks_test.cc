#include "kernels/sparse_attention/key_chunks.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/random_plan.h"

namespace overture::kernels {
namespace {

// One list, one query tile [64, 128), keys to 128.
TilePlan OneCell(std::vector<KeyRange> ranges, std::vector<int32_t> columns) {
  TilePlan plan;
  plan.q_begin = 64;
  plan.q_len = 64;
  plan.kv_len = 128;
  plan.num_lists = 1;
  plan.range_offsets = {0, static_cast<int64_t>(ranges.size())};
  plan.ranges = std::move(ranges);
  const auto count = static_cast<int32_t>(columns.size());
  plan.column_offsets = {0, count};
  plan.columns = std::move(columns);
  if (count > 0) plan.intervals = {{.begin = 0, .count = count}};
  plan.interval_offsets = {0, static_cast<int64_t>(plan.intervals.size())};
  return plan;
}

// The keys in the order that they stand in the chunks; checks what every cut
// must satisfy.
std::vector<int32_t> Keys(const KeyChunks& cut, int32_t max_keys) {
  std::vector<int32_t> keys;
  int32_t next_piece = 0;
  for (size_t c = 0; c < cut.chunks.size(); ++c) {
    const KeyChunk& chunk = cut.chunks[c];
    EXPECT_EQ(chunk.piece_begin, next_piece);
    EXPECT_GT(chunk.num_keys, 0);
    if (c + 1 < cut.chunks.size()) {
      EXPECT_EQ(chunk.num_keys, max_keys);
    }
    int32_t offset = 0;
    for (int32_t i = chunk.piece_begin; i < chunk.piece_end; ++i) {
      const KeyPiece& piece = cut.pieces[i];
      EXPECT_EQ(piece.offset, offset);
      for (int32_t k = 0; k < piece.count; ++k) {
        keys.push_back(piece.key_begin + k);
      }
      offset += piece.count;
    }
    EXPECT_EQ(offset, chunk.num_keys);
    EXPECT_LE(offset, max_keys);
    next_piece = chunk.piece_end;
  }
  EXPECT_EQ(next_piece, static_cast<int32_t>(cut.pieces.size()));
  return keys;
}

TEST(KeyChunks, NeighbouringRangesAreOnePiece) {
  KeyChunks cut;
  cut.Build(OneCell({{0, 1}, {64, 1}}, {}), 0, 0, 512);
  ASSERT_EQ(cut.pieces.size(), 1u);
  EXPECT_EQ(cut.pieces[0].key_begin, 0);
  EXPECT_EQ(cut.pieces[0].count, 128);
}

TEST(KeyChunks, KeysPastTheQueryTileAreDropped) {
  KeyChunks cut;
  cut.Build(OneCell({{70, 1}}, {}), 0, 0, 512);
  ASSERT_EQ(cut.chunks.size(), 1u);
  EXPECT_EQ(cut.chunks[0].num_keys, 128 - 70);
}

TEST(KeyChunks, ColumnsFollowTilesAndNeighboursMerge) {
  KeyChunks cut;
  cut.Build(OneCell({{64, 1}}, {3, 4, 5, 40}), 0, 0, 512);
  ASSERT_EQ(cut.pieces.size(), 3u);
  EXPECT_EQ(cut.pieces[1].key_begin, 3);
  EXPECT_EQ(cut.pieces[1].count, 3);
  EXPECT_EQ(cut.pieces[2].key_begin, 40);
  EXPECT_EQ(cut.pieces[2].offset, 67);
}

TEST(KeyChunks, MeansComeLastInChunksOfTheirOwn) {
  TilePlan plan = OneCell({{64, 1}}, {3});
  plan.mean_offsets = {0, 2};
  plan.mean_blocks = {{.begin = 0, .count = 2}, {.begin = 5, .count = 1}};
  KeyChunks cut;
  cut.Build(plan, 0, 0, 512);
  ASSERT_EQ(cut.chunks.size(), 2u);
  EXPECT_FALSE(cut.chunks[0].means);
  EXPECT_EQ(cut.chunks[0].num_keys, 65);
  EXPECT_TRUE(cut.chunks[1].means);
  EXPECT_EQ(cut.chunks[1].num_keys, 3);
  const KeyPiece& last = cut.pieces.back();
  EXPECT_EQ(last.key_begin, 5);
  EXPECT_EQ(last.offset, 2);
}

TEST(KeyChunks, AnEmptyCellHasNoChunk) {
  KeyChunks cut;
  cut.Build(OneCell({{64, 1}}, {}), 0, 0, 512);
  cut.Build(OneCell({}, {}), 0, 0, 512);
  EXPECT_TRUE(cut.chunks.empty());
  EXPECT_TRUE(cut.pieces.empty());
}

TEST(KeyChunks, KeepTheKeysOfRandomPlansInOrderAtAnySize) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const TilePlan plan = overture::testing::RandomPlan(
        {.q_begin = 70, .q_len = 400, .kv_len = 470, .empty_cells = 0.1},
        random);
    for (int64_t tile = 0; tile < plan.num_q_tiles(); ++tile) {
      const int64_t tile_end =
          plan.first_tile_begin() + (tile + 1) * plan.tile_rows;
      std::vector<int32_t> expected;
      for (int64_t i = plan.range_offsets[tile];
           i < plan.range_offsets[tile + 1]; ++i) {
        for (int32_t k = 0; k < plan.ranges[i].num_tiles * plan.tile_keys;
             ++k) {
          const int32_t key = plan.ranges[i].begin + k;
          if (key < tile_end) expected.push_back(key);
        }
      }
      for (int64_t i = plan.interval_offsets[tile];
           i < plan.interval_offsets[tile + 1]; ++i) {
        for (int32_t c = 0; c < plan.intervals[i].count; ++c) {
          expected.push_back(plan.columns[plan.intervals[i].begin + c]);
        }
      }
      for (int32_t max_keys : {1, 64, 100, 512}) {
        KeyChunks cut;
        cut.Build(plan, 0, tile, max_keys);
        EXPECT_EQ(Keys(cut, max_keys), expected) << tile << " " << max_keys;
      }
    }
  }
}

}  // namespace
}  // namespace overture::kernels
