#include "service/fetch_plan.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::service {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

// Checks what every plan promises, whatever the sizes: offsets add up, no
// chunk is empty or above the limit, and every (layer, head, row) is delivered
// exactly once, in ascending order of rows.
void ExpectSound(const KvLayout& layout, const FetchPlan& plan,
                 const std::vector<std::vector<int64_t>>& rows_of,
                 int32_t layer_begin, int64_t limit) {
  std::vector<std::vector<int64_t>> next(
      rows_of.size(), std::vector<int64_t>(layout.num_kv_heads, 0));
  int64_t offset = 0;
  for (int64_t i = 0; i < plan.num_chunks(); ++i) {
    const FetchChunk chunk = plan.chunk(i);
    ASSERT_EQ(chunk.stream_offset, offset);
    ASSERT_GT(chunk.payload_bytes, 0);
    ASSERT_LE(chunk.payload_bytes, limit);
    ASSERT_EQ(chunk.payload_bytes,
              2 * chunk.num_kv_heads * layout.HeadBytes(chunk.num_rows));
    const size_t layer = chunk.layer - layer_begin;
    ASSERT_LT(layer, rows_of.size());
    for (int32_t h = 0; h < chunk.num_kv_heads; ++h) {
      int64_t& row = next[layer][chunk.kv_head_begin + h];
      ASSERT_EQ(chunk.row_begin, row);
      row += chunk.num_rows;
    }
    offset += chunk.payload_bytes;
  }
  EXPECT_EQ(offset, plan.total_bytes());
  EXPECT_EQ(next, rows_of);
}

// Every border resumes at its chunk; every offset next to one is refused.
void ExpectResumes(const FetchPlan& plan) {
  for (int64_t i = 0; i < plan.num_chunks(); ++i) {
    const FetchChunk chunk = plan.chunk(i);
    const absl::StatusOr<int64_t> at = plan.ChunkAt(chunk.stream_offset);
    ASSERT_TRUE(at.ok()) << at.status();
    ASSERT_EQ(*at, i);
    ASSERT_THAT(plan.ChunkAt(chunk.stream_offset + 1),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("inside the chunk")));
  }
  EXPECT_EQ(*plan.ChunkAt(plan.total_bytes()), plan.num_chunks());
  EXPECT_THAT(
      plan.ChunkAt(plan.total_bytes() + 1),
      StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("resume_offset")));
  EXPECT_THAT(plan.ChunkAt(-1), StatusIs(absl::StatusCode::kOutOfRange));
}

TEST(FetchPlanTest, FullPlansAreSoundForOddSizes) {
  const KvLayout layouts[] = {{.num_layers = 3,
                               .num_kv_heads = 3,
                               .head_dim = 64,
                               .dtype = DType::kBF16},
                              {.num_layers = 2,
                               .num_kv_heads = 8,
                               .head_dim = 128,
                               .dtype = DType::kBF16},
                              {.num_layers = 1,
                               .num_kv_heads = 5,
                               .head_dim = 1024,
                               .dtype = DType::kF32},
                              {.num_layers = 4,
                               .num_kv_heads = 1,
                               .head_dim = 2,
                               .dtype = DType::kF16}};
  for (const KvLayout& layout : layouts) {
    for (int64_t n : {1, 255, 256, 257, 700, 1024}) {
      for (int32_t limit : {kMinChunkBytes, 100001, kMaxChunkBytes}) {
        SCOPED_TRACE(ToString(layout) + " n=" + std::to_string(n) +
                     " limit=" + std::to_string(limit));
        OVERTURE_ASSERT_OK_AND_ASSIGN(
            const FetchPlan plan,
            FetchPlan::ForFull(layout, n, {.chunk_bytes = limit}));
        EXPECT_EQ(plan.total_bytes(), layout.TotalBytes(n));
        ExpectSound(layout, plan,
                    std::vector<std::vector<int64_t>>(
                        layout.num_layers,
                        std::vector<int64_t>(layout.num_kv_heads, n)),
                    0, limit);
        ExpectResumes(plan);
      }
    }
  }
}

TEST(FetchPlanTest, AWholeRecordThatFitsIsOneChunk) {
  // 256 tokens of Llama-3-8B's shape are exactly the default limit.
  const KvLayout layout{.num_layers = 32,
                        .num_kv_heads = 8,
                        .head_dim = 128,
                        .dtype = DType::kBF16};
  OVERTURE_ASSERT_OK_AND_ASSIGN(const FetchPlan plan,
                                FetchPlan::ForFull(layout, 512, {}));
  EXPECT_EQ(plan.num_chunks(), 64);
  EXPECT_EQ(plan.chunk(0).payload_bytes, kDefaultChunkBytes);
  EXPECT_EQ(plan.chunk(0).num_kv_heads, 8);
  // Layer-major: the second chunk is the same layer's second block.
  EXPECT_EQ(plan.chunk(1).layer, 0);
  EXPECT_EQ(plan.chunk(1).row_begin, 256);
  EXPECT_EQ(plan.chunk(2).layer, 1);
}

TEST(FetchPlanTest, SmallBlocksShareAChunk) {
  // SmolLM2's shape: a block of a layer is 192 KiB, five fit 1 MiB.
  const KvLayout layout{.num_layers = 30,
                        .num_kv_heads = 3,
                        .head_dim = 64,
                        .dtype = DType::kBF16};
  OVERTURE_ASSERT_OK_AND_ASSIGN(const FetchPlan plan,
                                FetchPlan::ForFull(layout, 3000, {}));
  EXPECT_EQ(plan.num_chunks(), 30 * 3);
  EXPECT_EQ(plan.chunk(0).num_rows, 5 * 256);
  EXPECT_EQ(plan.chunk(1).row_begin, 5 * 256);
  EXPECT_EQ(plan.chunk(2).num_rows, 3000 - 10 * 256);
}

TEST(FetchPlanTest, ALayerRangeIsThoseLayersFromOffsetZero) {
  const KvLayout layout{.num_layers = 7,
                        .num_kv_heads = 2,
                        .head_dim = 64,
                        .dtype = DType::kBF16};
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const FetchPlan plan,
      FetchPlan::ForFull(layout, 300, {.layer_begin = 2, .layer_end = 5}));
  EXPECT_EQ(plan.total_bytes(), 3 * layout.LayerBytes(300));
  ExpectSound(layout, plan, {{300, 300}, {300, 300}, {300, 300}}, 2,
              kDefaultChunkBytes);
  ExpectResumes(plan);
}

TEST(FetchPlanTest, RaggedViewsAreSound) {
  const KvLayout layout{
      .num_layers = 2, .num_kv_heads = 3, .head_dim = 64, .dtype = DType::kF32};
  compress::ViewPlan view;
  const std::vector<std::vector<int64_t>> rows = {{1, 700, 0}, {129, 128, 127}};
  for (const auto& layer : rows) {
    view.positions.emplace_back();
    for (int64_t n : layer) view.positions.back().emplace_back(n, 0);
  }
  for (int32_t limit : {kMinChunkBytes, 99999, kMaxChunkBytes}) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const FetchPlan plan,
        FetchPlan::ForView(layout, view, {.chunk_bytes = limit}));
    ExpectSound(layout, plan, rows, 0, limit);
    ExpectResumes(plan);
  }
}

TEST(FetchPlanTest, ViewChunksLeaveRoomForTheirPositions) {
  // With two bytes a row, the payload's limit alone would allow 2 million rows,
  // whose positions are larger than a message.
  const KvLayout layout{
      .num_layers = 1, .num_kv_heads = 1, .head_dim = 1, .dtype = DType::kF16};
  compress::ViewPlan view;
  view.positions = {{std::vector<int32_t>(20000, 0)}};
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const FetchPlan plan,
      FetchPlan::ForView(layout, view, {.chunk_bytes = kMaxChunkBytes}));
  EXPECT_EQ(plan.num_chunks(), 4);
  ExpectSound(layout, plan, {{20000}}, 0, kMaxChunkBytes);
}

TEST(FetchPlanTest, NothingToDeliverIsAnEmptyPlan) {
  const KvLayout layout{
      .num_layers = 1, .num_kv_heads = 1, .head_dim = 2, .dtype = DType::kF16};
  OVERTURE_ASSERT_OK_AND_ASSIGN(const FetchPlan plan,
                                FetchPlan::ForFull(layout, 0, {}));
  EXPECT_EQ(plan.num_chunks(), 0);
  EXPECT_EQ(*plan.ChunkAt(0), 0);
}

TEST(FetchPlanTest, BadRangesNameTheFieldAndTheLimit) {
  const KvLayout layout{
      .num_layers = 4, .num_kv_heads = 1, .head_dim = 64, .dtype = DType::kF16};
  const struct {
    FetchPlan::Range range;
    absl::StatusCode code;
    const char* message;
  } cases[] = {
      {{.layer_begin = -1},
       absl::StatusCode::kOutOfRange,
       "layer_begin: -1 is not in [0, 4)"},
      {{.layer_begin = 4}, absl::StatusCode::kOutOfRange, "layer_begin: 4"},
      {{.layer_end = 5},
       absl::StatusCode::kOutOfRange,
       "layer_end: 5 is not in [0, 4]"},
      {{.layer_begin = 2, .layer_end = 2},
       absl::StatusCode::kInvalidArgument,
       "layer_end: 2 is not above layer_begin 2"},
      {{.chunk_bytes = kMinChunkBytes - 1},
       absl::StatusCode::kInvalidArgument,
       "max_chunk_bytes: 65535"},
      {{.chunk_bytes = kMaxChunkBytes + 1},
       absl::StatusCode::kInvalidArgument,
       "max_chunk_bytes"},
      {{.chunk_bytes = -5},
       absl::StatusCode::kInvalidArgument,
       "max_chunk_bytes: -5"}};
  for (const auto& c : cases) {
    EXPECT_THAT(FetchPlan::ForFull(layout, 10, c.range),
                StatusIs(c.code, HasSubstr(c.message)));
  }
}

}  // namespace
}  // namespace overture::service
