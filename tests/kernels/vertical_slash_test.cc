#include "kernels/selectors/vertical_slash.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/plan_cover.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::PlanCover;

std::vector<int32_t> Iota(int32_t count) {
  std::vector<int32_t> v(count);
  std::iota(v.begin(), v.end(), 0);
  return v;
}

std::vector<int32_t> Concat(std::vector<int32_t> a,
                            const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Starts of the key tiles of one query tile.
std::vector<int64_t> TileStarts(const TilePlan& plan, int64_t cell) {
  std::vector<int64_t> starts;
  for (int64_t i = plan.range_offsets[cell]; i < plan.range_offsets[cell + 1];
       ++i) {
    for (int64_t t = 0; t < plan.ranges[i].num_tiles; ++t) {
      starts.push_back(plan.ranges[i].begin + t * plan.tile_keys);
    }
  }
  return starts;
}

std::vector<int32_t> Columns(const TilePlan& plan, int64_t cell) {
  std::vector<int32_t> columns;
  const int64_t list = cell / plan.num_q_tiles();
  for (int64_t i = plan.interval_offsets[cell];
       i < plan.interval_offsets[cell + 1]; ++i) {
    for (int32_t c = 0; c < plan.intervals[i].count; ++c) {
      columns.push_back(plan.columns[plan.column_offsets[list] +
                                     plan.intervals[i].begin + c]);
    }
  }
  return columns;
}

// N = 1024: what the released index kernel yields, worked out from its rule
// (docs/sparse_plans.md).
class GoldenTest : public ::testing::Test {
 protected:
  const VerticalSlashIndex index_ = {
      .verticals = Concat(Iota(30), {130, 131, 400, 700, 701, 1000}),
      .slashes = Concat(Iota(100), {256, 300, 511})};
};

TEST_F(GoldenTest, ExactFormIsTheReleasedCodesTileForTile) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const TilePlan plan,
      BuildVerticalSlashPlan({.q_len = 1024, .kv_len = 1024}, {index_},
                             RangeForm::kExact));
  ASSERT_THAT(Validate(plan), IsOk());
  EXPECT_THAT(TileStarts(plan, 0), ElementsAre(0));
  EXPECT_THAT(Columns(plan, 0), IsEmpty());
  EXPECT_THAT(TileStarts(plan, 2), ElementsAre(29, 93, 157));
  EXPECT_THAT(Columns(plan, 2), ElementsAreArray(Iota(29)));
  EXPECT_THAT(TileStarts(plan, 3), ElementsAre(93, 157, 221));
  EXPECT_THAT(Columns(plan, 3), ElementsAreArray(Iota(30)));
  EXPECT_THAT(TileStarts(plan, 8), ElementsAre(1, 212, 276, 413, 477, 541));
  EXPECT_THAT(Columns(plan, 8), ElementsAre(0, 130, 131, 400));
  EXPECT_THAT(TileStarts(plan, 9), ElementsAre(65, 276, 340, 477, 541, 605));
  EXPECT_THAT(Columns(plan, 9), ElementsAreArray(Concat(Iota(30), {130, 131})));
  EXPECT_THAT(TileStarts(plan, 15), ElementsAre(449, 660, 724, 861, 925, 989));
  EXPECT_THAT(Columns(plan, 15),
              ElementsAreArray(Concat(Iota(30), {130, 131, 400})));
}

TEST_F(GoldenTest, APrefixShiftsTheRowsAndChangesNoTile) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const TilePlan whole,
      BuildVerticalSlashPlan({.q_len = 1024, .kv_len = 1024}, {index_},
                             RangeForm::kExact));
  // Resumes in the middle of query tile 8.
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const TilePlan resumed,
      BuildVerticalSlashPlan({.q_begin = 541, .q_len = 483, .kv_len = 1024},
                             {index_}, RangeForm::kExact));
  ASSERT_THAT(Validate(resumed), IsOk());
  ASSERT_EQ(resumed.num_q_tiles(), 8);
  for (int64_t tile = 0; tile < 8; ++tile) {
    EXPECT_EQ(TileStarts(resumed, tile), TileStarts(whole, tile + 8));
    EXPECT_EQ(Columns(resumed, tile), Columns(whole, tile + 8));
  }
  EXPECT_THAT(TileStarts(resumed, 0), ElementsAre(1, 212, 276, 413, 477, 541));
}

TEST_F(GoldenTest, AlignedFormTakesTheTilesThatHoldAKeptPair) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const TilePlan plan,
      BuildVerticalSlashPlan({.q_len = 1024, .kv_len = 1024}, {index_},
                             RangeForm::kAligned));
  ASSERT_THAT(Validate(plan), IsOk());
  EXPECT_THAT(TileStarts(plan, 2), ElementsAre(0, 64, 128));
  EXPECT_THAT(Columns(plan, 2), IsEmpty());
  // Keys [1, 65), [212, 276), [256, 320) and [413, 576).
  EXPECT_THAT(TileStarts(plan, 8), ElementsAre(0, 64, 192, 256, 384, 448, 512));
  EXPECT_THAT(Columns(plan, 8), ElementsAre(130, 131));
  // Keys [449, 513), [660, 724), [704, 768) and [861, 1024).
  EXPECT_THAT(TileStarts(plan, 15),
              ElementsAre(448, 512, 640, 704, 832, 896, 960));
  EXPECT_THAT(Columns(plan, 15),
              ElementsAreArray(Concat(Iota(30), {130, 131, 400})));
}

// Whether the selector keeps the pair: the definition, element by element.
bool Keeps(const VerticalSlashIndex& index, int64_t q, int64_t k) {
  return std::binary_search(index.verticals.begin(), index.verticals.end(),
                            k) ||
         std::binary_search(index.slashes.begin(), index.slashes.end(), q - k);
}

// `indices` hold one list each; checks I1 on all, I2 to I6 by Validate.
void ExpectCoversItsDefinition(const TilePlan& plan,
                               const std::vector<VerticalSlashIndex>& indices) {
  ASSERT_THAT(Validate(plan), IsOk());
  for (size_t list = 0; list < indices.size(); ++list) {
    const PlanCover cover(plan, list);
    for (int64_t q = plan.q_begin; q < plan.q_begin + plan.q_len; ++q) {
      for (int64_t k = 0; k <= q; ++k) {
        ASSERT_LE(cover.Count(q, k), 1)
            << "list " << list << " q " << q << " k " << k;
        if (Keeps(indices[list], q, k)) {
          ASSERT_EQ(cover.Count(q, k), 1)
              << "list " << list << " q " << q << " k " << k;
        }
      }
    }
  }
}

// A random subset of [0, n) of up to `count`, in runs and alone.
std::vector<int32_t> RandomSet(std::mt19937& rng, int64_t n, int32_t count) {
  std::vector<int32_t> set;
  while (count > 0) {
    int32_t at = rng() % n;
    const int32_t run = rng() % 3 == 0 ? rng() % 40 : 1;
    for (int32_t i = 0; i < run && at + i < n; ++i) set.push_back(at + i);
    count -= std::max(run, 1);
  }
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  return set;
}

struct RandomCase {
  PlanShape shape;
  std::vector<VerticalSlashIndex> indices;
};

RandomCase MakeCase(std::mt19937& rng) {
  RandomCase c;
  constexpr int32_t kTiles[] = {16, 48, 64, 128};
  c.shape.kv_len = 1 + rng() % 600;
  c.shape.q_begin = rng() % 2 == 0 ? 0 : rng() % c.shape.kv_len;
  c.shape.q_len = 1 + rng() % (c.shape.kv_len - c.shape.q_begin);
  c.shape.tile_rows = kTiles[rng() % 4];
  c.shape.tile_keys = kTiles[rng() % 4];
  c.indices.resize(1 + rng() % 3);
  for (VerticalSlashIndex& index : c.indices) {
    index.verticals = RandomSet(rng, c.shape.kv_len, rng() % 120);
    index.slashes = RandomSet(rng, c.shape.kv_len, rng() % 60);
    if (index.slashes.empty() || index.slashes[0] != 0) {
      index.slashes.insert(index.slashes.begin(), 0);
    }
  }
  return c;
}

// Starts of the aligned tiles that hold a key which a row of [s, e), real or
// not, sees at a kept distance; those from `limit` on are no row's.
std::vector<int64_t> TilesByDefinition(const VerticalSlashIndex& index,
                                       int64_t s, int64_t e, int64_t tile_keys,
                                       int64_t limit) {
  std::vector<int64_t> starts;
  for (int64_t start = 0; start < limit; start += tile_keys) {
    const auto holds = [&](int64_t distance) {
      for (int64_t row = s; row < e; ++row) {
        const int64_t key = row - distance;
        if (key >= start && key < start + tile_keys) return true;
      }
      return false;
    };
    if (std::any_of(index.slashes.begin(), index.slashes.end(), holds)) {
      starts.push_back(start);
    }
  }
  return starts;
}

TEST(RandomPlanTest, AlignedFormCoversItsDefinitionOnceForAnyTile) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 rng(seed);
  for (int round = 0; round < 120; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    const RandomCase c = MakeCase(rng);
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const TilePlan plan,
        BuildVerticalSlashPlan(c.shape, c.indices, RangeForm::kAligned));
    ASSERT_NO_FATAL_FAILURE(ExpectCoversItsDefinition(plan, c.indices));
    for (int64_t cell = 0; cell < plan.num_cells(); ++cell) {
      const int64_t s =
          plan.first_tile_begin() + cell % plan.num_q_tiles() * plan.tile_rows;
      const int64_t e = s + plan.tile_rows;
      ASSERT_EQ(TileStarts(plan, cell),
                TilesByDefinition(c.indices[cell / plan.num_q_tiles()], s, e,
                                  plan.tile_keys,
                                  std::min(e, plan.q_begin + plan.q_len)));
    }
  }
}

TEST(RandomPlanTest, EveryResidueOfAPrefixIsCovered) {
  std::mt19937 rng(5);
  for (int64_t q_begin = 130; q_begin < 130 + 128; ++q_begin) {
    SCOPED_TRACE(absl::StrCat("q_begin ", q_begin));
    const PlanShape shape = {.q_begin = q_begin,
                             .q_len = q_begin % 2 == 0 ? 1 : 5,
                             .kv_len = 400,
                             .tile_rows = 128,
                             .tile_keys = 64};
    VerticalSlashIndex index = {.verticals = RandomSet(rng, 400, 40),
                                .slashes = RandomSet(rng, 300, 10)};
    index.slashes.insert(index.slashes.begin(), 0);
    index.slashes.erase(std::unique(index.slashes.begin(), index.slashes.end()),
                        index.slashes.end());
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const TilePlan plan,
        BuildVerticalSlashPlan(shape, {index}, RangeForm::kAligned));
    ASSERT_NO_FATAL_FAILURE(ExpectCoversItsDefinition(plan, {index}));
  }
}

TEST(RandomPlanTest, ExactFormCoversItsDefinitionAndRoundedHoldsAligned) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 rng(seed);
  for (int round = 0; round < 120; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    RandomCase c = MakeCase(rng);
    c.shape.tile_rows = c.shape.tile_keys = 64;
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const TilePlan exact,
        BuildVerticalSlashPlan(c.shape, c.indices, RangeForm::kExact));
    ASSERT_NO_FATAL_FAILURE(ExpectCoversItsDefinition(exact, c.indices));
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const TilePlan aligned,
        BuildVerticalSlashPlan(c.shape, c.indices, RangeForm::kAligned));
    for (int64_t cell = 0; cell < exact.num_cells(); ++cell) {
      std::set<int64_t> rounded;
      for (const int64_t start : TileStarts(exact, cell)) {
        rounded.insert(start / 64 * 64);
        rounded.insert((start + 63) / 64 * 64);
      }
      for (const int64_t start : TileStarts(aligned, cell)) {
        ASSERT_TRUE(rounded.contains(start))
            << "cell " << cell << " tile " << start;
      }
    }
  }
}

// What lets one list of tiles, counted from the end of a query tile, serve all
// query tiles of a head.
TEST(RandomPlanTest, QueryTilesShareTheirAlignedTilesSeenFromTheirEnds) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 rng(seed);
  for (int round = 0; round < 50; ++round) {
    RandomCase c = MakeCase(rng);
    c.shape.tile_rows = 128;
    c.shape.tile_keys = 64;
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const TilePlan plan,
        BuildVerticalSlashPlan(c.shape, {c.indices[0]}, RangeForm::kAligned));
    // Of the last query tile that has all its rows.
    const int64_t q_end = c.shape.q_begin + c.shape.q_len;
    const int64_t whole = (q_end - plan.first_tile_begin()) / 128;
    const auto end_of = [&](int64_t tile) {
      return plan.first_tile_begin() + (tile + 1) * 128;
    };
    for (int64_t tile = 0; tile < whole; ++tile) {
      std::vector<int64_t> expected;
      for (const int64_t start : TileStarts(plan, whole - 1)) {
        const int64_t shifted = start - end_of(whole - 1) + end_of(tile);
        if (shifted >= 0) expected.push_back(shifted);
      }
      ASSERT_EQ(TileStarts(plan, tile), expected) << "tile " << tile;
    }
  }
}

class CornerTest : public ::testing::TestWithParam<RangeForm> {
 protected:
  // One list over all rows of `n` tokens, checked.
  TilePlan Build(int64_t n, const VerticalSlashIndex& index) {
    auto plan =
        BuildVerticalSlashPlan({.q_len = n, .kv_len = n}, {index}, GetParam());
    EXPECT_THAT(plan, IsOk());
    ExpectCoversItsDefinition(*plan, {index});
    return *std::move(plan);
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, CornerTest,
                         ::testing::Values(RangeForm::kExact,
                                           RangeForm::kAligned),
                         [](const auto& info) {
                           return info.param == RangeForm::kExact ? "Exact"
                                                                  : "Aligned";
                         });

TEST_P(CornerTest, TailsOfEveryLength) {
  for (const int64_t n : {1, 2, 63, 64, 65, 127, 129, 1000}) {
    SCOPED_TRACE(n);
    const int32_t some = std::min<int32_t>(n, 30);
    Build(n, {.verticals = Iota(some), .slashes = Iota(some)});
  }
}

TEST_P(CornerTest, NoColumnsLeaveOnlyRanges) {
  const TilePlan plan = Build(200, {.verticals = {}, .slashes = {0, 90}});
  EXPECT_THAT(plan.intervals, IsEmpty());
  EXPECT_THAT(plan.columns, IsEmpty());
}

TEST_P(CornerTest, OnlyDistanceZeroIsTheDiagonal) {
  const TilePlan plan = Build(256, {.verticals = {}, .slashes = {0}});
  EXPECT_THAT(plan.ranges, ElementsAre(KeyRange{0, 1}, KeyRange{64, 1},
                                       KeyRange{128, 1}, KeyRange{192, 1}));
}

TEST_P(CornerTest, SlashesBeyondTheRowsAreSkipped) {
  // Rows 0..63 see no distance from 64 on.
  const TilePlan plan = Build(300, {.verticals = {}, .slashes = {0, 250, 299}});
  EXPECT_THAT(TileStarts(plan, 0), ElementsAre(0));
  EXPECT_THAT(TileStarts(plan, 1), ElementsAre(64));
}

TEST_P(CornerTest, SizesBeyondTheLengthAreDense) {
  for (const int64_t n : {1, 65, 301}) {
    SCOPED_TRACE(n);
    const std::vector<float> sums(n, 1.0f);
    const TilePlan plan =
        Build(n, SelectVerticalSlash(sums, sums, {1000, 6096}));
    EXPECT_EQ(Cost(plan).density, 1.0);
  }
}

TEST_P(CornerTest, ColumnsOnlyOfTheFutureAreDropped) {
  const TilePlan plan = Build(130, {.verticals = {128, 129}, .slashes = {0}});
  EXPECT_THAT(plan.intervals, IsEmpty());
}

TEST(BuildTest, ListsKeepTheirOwnColumns) {
  const std::vector<VerticalSlashIndex> indices = {
      {.verticals = {3, 70}, .slashes = {0}},
      {.verticals = {}, .slashes = {0}},
      {.verticals = {1, 2, 5}, .slashes = {0, 64}}};
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const TilePlan plan, BuildVerticalSlashPlan({.q_len = 192, .kv_len = 192},
                                                  indices, RangeForm::kExact));
  ExpectCoversItsDefinition(plan, indices);
  EXPECT_THAT(Columns(plan, 2), ElementsAre(3, 70));
  EXPECT_THAT(Columns(plan, 5), IsEmpty());
  EXPECT_THAT(Columns(plan, 8), ElementsAre(1, 2, 5));
}

TEST(BuildTest, RefusesIndicesThatDoNotAscendWithinTheKeys) {
  const PlanShape shape = {.q_len = 100, .kv_len = 100};
  const VerticalSlashIndex good = {.verticals = {0}, .slashes = {0}};
  const auto expect = [&](const VerticalSlashIndex& bad, const char* message) {
    EXPECT_THAT(
        BuildVerticalSlashPlan(shape, {good, bad}, RangeForm::kExact),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect({.verticals = {5, 4}, .slashes = {0}}, "indices[1].verticals[1] is 4");
  expect({.verticals = {4, 4}, .slashes = {0}}, "indices[1].verticals[1] is 4");
  expect({.verticals = {-1}, .slashes = {0}}, "indices[1].verticals[0] is -1");
  expect({.verticals = {100}, .slashes = {0}}, "verticals[0] is 100");
  expect({.verticals = {}, .slashes = {0, 100}}, "slashes[1] is 100");
  expect({.verticals = {}, .slashes = {1, 0}}, "slashes[1] is 0");
  expect({.verticals = {}, .slashes = {}}, "lacks distance 0");
  expect({.verticals = {}, .slashes = {1}}, "lacks distance 0");
}

TEST(BuildTest, RefusesNoListsABadShapeAndOtherTilesInTheExactForm) {
  const VerticalSlashIndex index = {.verticals = {}, .slashes = {0}};
  EXPECT_THAT(BuildVerticalSlashPlan({.q_len = 1, .kv_len = 1}, {},
                                     RangeForm::kAligned),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("indices is empty")));
  EXPECT_THAT(
      BuildVerticalSlashPlan({.q_len = 2, .kv_len = 1}, {index},
                             RangeForm::kAligned),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("kv_len")));
  EXPECT_THAT(
      BuildVerticalSlashPlan({.q_len = 1, .kv_len = 1, .tile_rows = 128},
                             {index}, RangeForm::kExact),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("128x64")));
}

// 60,000 columns in 65,536 query tiles: counted in 64 bits, held as intervals.
TEST(BuildTest, CountsMoreThanTwoToTheThirtyOneColumns) {
  constexpr int64_t kTokens = int64_t{1} << 22;
  const VerticalSlashIndex index = {.verticals = Iota(60000), .slashes = {0}};
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const TilePlan plan,
      BuildVerticalSlashPlan({.q_len = kTokens, .kv_len = kTokens}, {index},
                             RangeForm::kAligned));
  int64_t columns = 0;
  for (int64_t s = 0; s < kTokens; s += 64) {
    columns += std::min<int64_t>(s, 60000);
  }
  ASSERT_GT(columns, int64_t{1} << 31);
  EXPECT_EQ(Cost(plan).columns, columns);
  EXPECT_LT(plan.SizeBytes(), 4'000'000);
}

// VS(1000, 6096) on 2^18 tokens: 970 columns and 5,996 distances beyond the
// forced ones, the distances in 400 clusters as trained heads show them.
//
// Bound: a query tile ending at e has at most min(clusters + 1, e / 65 + 1)
// ranges, since ranges of at least 64 keys lie at least one key apart, and at
// most one interval per range; each takes 8 bytes, each tile 16 more for its
// two offsets, each list 4 bytes per column.
TEST(PlanBytesTest, AQuarterMillionTokensStayWithinTheirBound) {
  constexpr int64_t kTokens = int64_t{1} << 18;
  constexpr int64_t kClusters = 400;
  std::mt19937 rng(7);
  VerticalSlashIndex index = {.verticals = Iota(30), .slashes = Iota(100)};
  while (index.verticals.size() < 1000) {
    index.verticals.push_back(30 + rng() % (kTokens - 30));
  }
  for (int64_t i = 0; i < kClusters; ++i) {
    const int32_t at = 100 + rng() % (kTokens - 200);
    for (int32_t j = 0; j < 15; ++j) index.slashes.push_back(at + j);
  }
  for (std::vector<int32_t>* v : {&index.verticals, &index.slashes}) {
    std::sort(v->begin(), v->end());
    v->erase(std::unique(v->begin(), v->end()), v->end());
  }
  for (const RangeForm form : {RangeForm::kExact, RangeForm::kAligned}) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const TilePlan plan,
        BuildVerticalSlashPlan({.q_len = kTokens, .kv_len = kTokens}, {index},
                               form));
    ASSERT_THAT(Validate(plan), IsOk());
    int64_t bound = 2 * 8 + 2 * 8 + 4 * 1000;
    for (int64_t e = 64; e <= kTokens; e += 64) {
      bound += 16 * std::min(kClusters + 1, e / 65 + 1) + 16;
    }
    EXPECT_LE(plan.SizeBytes(), bound);
    // Columns repeated per tile would take more than the whole plan does.
    EXPECT_LT(plan.SizeBytes(),
              4 * Cost(plan).columns + 4 * Cost(plan).key_tiles);
    RecordProperty("bytes", std::to_string(plan.SizeBytes()));
  }
}

}  // namespace
}  // namespace overture::kernels
