#include "kernels/selectors/vertical_slash_gpu.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/selectors/vertical_slash.h"
#include "kernels/selectors/work_order.h"
#include "kernels/sparse_attention/launch.h"
#include "kernels/sparse_attention/uploaded_plan.h"
#include "tests/support/device_copy.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::overture::testing::ToDevice;
using ::overture::testing::ToHost;
using ::testing::HasSubstr;

struct Case {
  int64_t q_begin = 0;
  int64_t q_len = 1;
  int64_t kv_len = 1;
  std::vector<VerticalSlashSize> sizes;
  std::vector<float> column_sums;    // [heads, kv_len]
  std::vector<float> diagonal_sums;  // [heads, kv_len]
};

// What one cell computes, written out.
struct Cell {
  std::vector<int64_t> tiles;  // first keys, ascending
  std::vector<int32_t> columns;
  friend bool operator==(const Cell&, const Cell&) = default;
};

Cell HostCell(const TilePlan& plan, int64_t index) {
  Cell cell;
  for (int64_t i = plan.range_offsets[index]; i < plan.range_offsets[index + 1];
       ++i) {
    for (int64_t t = 0; t < plan.ranges[i].num_tiles; ++t) {
      cell.tiles.push_back(plan.ranges[i].begin + t * plan.tile_keys);
    }
  }
  const int64_t list = index / plan.num_q_tiles();
  for (int64_t i = plan.interval_offsets[index];
       i < plan.interval_offsets[index + 1]; ++i) {
    for (int32_t c = 0; c < plan.intervals[i].count; ++c) {
      cell.columns.push_back(plan.columns[plan.column_offsets[list] +
                                          plan.intervals[i].begin + c]);
    }
  }
  return cell;
}

// A choice and a plan of all rows, their memory, read back.
class GpuPlan {
 public:
  explicit GpuPlan(const Case& c) : case_(c) {
    auto stream = Stream::Create();
    EXPECT_TRUE(stream.ok()) << stream.status();
    stream_.emplace(*std::move(stream));
    column_sums_ = ToDevice(c.column_sums, *stream_);
    diagonal_sums_ = ToDevice(c.diagonal_sums, *stream_);
    pairs_ = ToDevice(std::vector<uint64_t>{kPairsBefore}, *stream_);
    // Filled with rubbish, so that what nobody writes shows.
    const int64_t choice_bytes = VerticalSlashChoiceBytes(c.kv_len, c.sizes);
    scratch_ = ToDevice(
        std::vector<std::byte>(
            choice_bytes + VerticalSlashPlanBytes(c.q_len, c.kv_len, c.sizes),
            std::byte{0xa5}),
        *stream_);
    auto choice = LaunchVerticalSlashChoice(
        {.column_sums = column_sums_.data(),
         .diagonal_sums = diagonal_sums_.data(),
         .sizes = c.sizes,
         .kv_len = c.kv_len},
        scratch_.data(), choice_bytes, stream_->get());
    EXPECT_TRUE(choice.ok()) << choice.status();
    if (!choice.ok()) return;
    choice_ = *choice;
    Slice(c.q_begin, c.q_len);
  }

  // Plans other rows by the same choice, in the same memory.
  void Slice(int64_t q_begin, int64_t q_len) {
    const int64_t used = VerticalSlashChoiceBytes(case_.kv_len, case_.sizes);
    auto plan = LaunchVerticalSlashPlan(
        choice_, {.q_begin = q_begin, .q_len = q_len, .pairs = pairs_.data()},
        scratch_.data() + used, scratch_.bytes() - used, stream_->get());
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return;
    plan_ = *plan;
    host_ = ToHost(scratch_, *stream_);
  }

  const DeviceTilePlan& plan() const { return plan_; }
  const Stream& stream() const { return *stream_; }

  VerticalSlashIndex Index(int64_t head) const {
    const int32_t* counts = Host(choice_.counts) + head;
    const int32_t* verticals =
        Host(choice_.verticals) + head * choice_.vertical_stride;
    const int32_t* slashes =
        Host(choice_.slashes) + head * choice_.slash_stride;
    return {.verticals = {verticals, verticals + counts[0]},
            .slashes = {slashes, slashes + counts[choice_.num_heads]}};
  }

  const PlanCell& cell(int64_t index) const {
    return Host(plan().cells)[index];
  }

  // Without the tiles that no row sees.
  Cell Expand(int64_t index) const {
    const PlanCell& from = cell(index);
    Cell cell;
    const KeyRange* range = Host(plan().ranges) + from.range_end;
    for (int32_t left = from.num_tiles; left > 0;) {
      --range;
      for (int32_t t = range->num_tiles - 1; t >= 0 && left > 0; --t, --left) {
        const int64_t key =
            int64_t{from.key_origin} + range->begin + t * kGpuTileKeys;
        if (key < plan_.q_begin + plan_.q_len) cell.tiles.push_back(key);
      }
    }
    std::reverse(cell.tiles.begin(), cell.tiles.end());
    const int32_t* columns = Host(plan().columns) + from.column_begin;
    cell.columns.assign(columns, columns + from.num_columns);
    return cell;
  }

  std::vector<int32_t> Order() const {
    const int32_t* order = Host(plan().order);
    return {order, order + int64_t{plan().num_lists} * plan().num_q_tiles};
  }

  uint64_t Pairs() const { return ToHost(pairs_, *stream_)[0] - kPairsBefore; }

 private:
  static constexpr uint64_t kPairsBefore = 1000;

  template <typename T>
  const T* Host(const T* device) const {
    return reinterpret_cast<const T*>(
        host_.data() +
        (reinterpret_cast<const std::byte*>(device) - scratch_.data()));
  }

  const Case& case_;
  std::optional<Stream> stream_;
  DeviceBuffer<float> column_sums_;
  DeviceBuffer<float> diagonal_sums_;
  DeviceBuffer<uint64_t> pairs_;
  DeviceBuffer<std::byte> scratch_;
  std::vector<std::byte> host_;
  VerticalSlashChoice choice_;
  DeviceTilePlan plan_;
};

std::vector<VerticalSlashIndex> HostIndices(const Case& c) {
  std::vector<VerticalSlashIndex> indices;
  for (size_t head = 0; head < c.sizes.size(); ++head) {
    const auto sums = [&](const std::vector<float>& all) {
      return absl::MakeConstSpan(all).subspan(head * c.kv_len, c.kv_len);
    };
    indices.push_back(SelectVerticalSlash(
        sums(c.column_sums), sums(c.diagonal_sums), c.sizes[head]));
  }
  return indices;
}

TilePlan HostPlan(const Case& c) {
  auto plan = BuildVerticalSlashPlan({.q_begin = c.q_begin,
                                      .q_len = c.q_len,
                                      .kv_len = c.kv_len,
                                      .tile_rows = kGpuTileRows,
                                      .tile_keys = kGpuTileKeys},
                                     HostIndices(c), RangeForm::kAligned);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

// Everything the GPU chooses and plans is what the CPU does.
void ExpectEqualsCpu(const Case& c) {
  const GpuPlan gpu(c);
  const std::vector<VerticalSlashIndex> indices = HostIndices(c);
  const TilePlan host = HostPlan(c);
  const int64_t heads = static_cast<int64_t>(c.sizes.size());
  for (int64_t head = 0; head < heads; ++head) {
    const VerticalSlashIndex index = gpu.Index(head);
    ASSERT_EQ(index.verticals, indices[head].verticals) << "head " << head;
    ASSERT_EQ(index.slashes, indices[head].slashes) << "head " << head;
  }
  ASSERT_EQ(gpu.plan().num_lists, heads);
  ASSERT_EQ(gpu.plan().num_q_tiles, host.num_q_tiles());
  for (int64_t i = 0; i < host.num_cells(); ++i) {
    const Cell got = gpu.Expand(i);
    const Cell want = HostCell(host, i);
    ASSERT_EQ(got.tiles, want.tiles) << "cell " << i;
    ASSERT_EQ(got.columns, want.columns) << "cell " << i;
  }

  // Every item once, most expensive first as far as the order tells.
  const std::vector<int32_t> order = gpu.Order();
  const auto digit = [&](int32_t item) {
    return CostDigit(
        CellCost(gpu.cell(item).num_tiles, gpu.cell(item).num_columns));
  };
  for (size_t i = 1; i < order.size(); ++i) {
    ASSERT_GE(digit(order[i - 1]), digit(order[i])) << "place " << i;
  }
  std::vector<int32_t> all(order.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<int32_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  ASSERT_EQ(sorted, all);

  const double causal =
      heads * (0.5 * c.q_len * (c.q_len + 1) + 1.0 * c.q_len * c.q_begin);
  ASSERT_NEAR(static_cast<double>(gpu.Pairs()) / causal, Cost(host).density,
              1e-12);
}

// Sums as a probe gives them: a few large, most tiny over many magnitudes.
Case MakeCase(int64_t q_begin, int64_t q_len,
              std::vector<VerticalSlashSize> sizes, uint32_t seed) {
  Case c{.q_begin = q_begin,
         .q_len = q_len,
         .kv_len = q_begin + q_len,
         .sizes = std::move(sizes)};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(-12.0f, 6.0f);
  for (std::vector<float>* sums : {&c.column_sums, &c.diagonal_sums}) {
    sums->resize(c.sizes.size() * c.kv_len);
    for (float& sum : *sums) sum = std::exp(normal(random));
  }
  return c;
}

TEST(VerticalSlashGpuTest, EqualsTheCpuAtOddLengthsAndPrefixOffsets) {
  uint32_t seed = 1;
  for (const auto& [q_begin, q_len] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1},
                                                {0, 63},
                                                {0, 64},
                                                {0, 65},
                                                {0, 128},
                                                {0, 129},
                                                {0, 4096},
                                                {0, 5001},
                                                {1, 1},
                                                {63, 1},
                                                {64, 1},
                                                {127, 2},
                                                {128, 128},
                                                {200, 333},
                                                {4095, 1},
                                                {8191, 1},
                                                {8192, 4096},
                                                {10007, 3001},
                                                {40000, 2500}}) {
    SCOPED_TRACE(absl::StrCat("q_begin ", q_begin, " q_len ", q_len));
    ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(MakeCase(
        q_begin, q_len, {{1000, 6096}, {30, 800}, {3500, 100}}, seed++)));
  }
}

TEST(VerticalSlashGpuTest, EqualsTheCpuAtEveryResidueOfAPrefix) {
  for (int64_t q_begin = 500; q_begin < 500 + kGpuTileRows; ++q_begin) {
    SCOPED_TRACE(absl::StrCat("q_begin ", q_begin));
    ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(MakeCase(
        q_begin, 1 + q_begin % 3 * 100, {{40, 120}, StaticSize(0, 1)}, 23)));
  }
}

TEST(VerticalSlashGpuTest, EqualsTheCpuWhateverTheSizes) {
  // Below the forced ones, at them, above the length, ten times apart.
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(MakeCase(500, 1500,
                                                   {{1, 1},
                                                    {29, 60},
                                                    {30, 100},
                                                    {31, 101},
                                                    {1, 2000},
                                                    {2000, 1},
                                                    {1999, 1999},
                                                    {1 << 20, 1 << 20},
                                                    {100, 1000}},
                                                   7)));
}

TEST(VerticalSlashGpuTest, EqualsTheCpuWithAsManyHeadsAsThereMayBe) {
  std::vector<VerticalSlashSize> sizes;
  for (int32_t i = 0; i < kMaxSelectorHeads; ++i) {
    sizes.push_back({.vertical = 30 + i, .slash = 100 + 10 * i});
  }
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(MakeCase(0, 3000, sizes, 8)));
  sizes.push_back({});
  const Case c = MakeCase(0, 10, sizes, 8);
  EXPECT_THAT(LaunchVerticalSlashChoice({.sizes = c.sizes, .kv_len = 10},
                                        nullptr, 0, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("sizes has 129 heads")));
}

TEST(VerticalSlashGpuTest, TiesGoToTheSmallerIndex) {
  Case c = MakeCase(100, 9000, {{1000, 2000}, {40, 5000}}, 9);
  // All equal, few distinct values, zeros of both signs.
  std::fill(c.column_sums.begin(), c.column_sums.end(), 0.25f);
  std::mt19937 random(10);
  for (float& sum : c.diagonal_sums) {
    const int value = static_cast<int>(random() % 6);
    sum = value == 0 ? -0.0f : value == 1 ? 0.0f : static_cast<float>(value);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(c));
}

TEST(VerticalSlashGpuTest, NanRanksBelowEveryNumber) {
  Case c = MakeCase(0, 6000, {{1000, 2000}, {1000, 2000}, {1000, 2000}}, 11);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  // Head 0: nothing but NaN; head 1: too few numbers; head 2: some NaN.
  std::mt19937 random(12);
  for (std::vector<float>* sums : {&c.column_sums, &c.diagonal_sums}) {
    for (int64_t i = 0; i < 6000; ++i) {
      (*sums)[i] = nan;
      if (random() % 20 != 0) (*sums)[6000 + i] = -nan;
      if (random() % 4 == 0) (*sums)[12000 + i] = nan;
    }
    (*sums)[6000 + 5000] = -infinity;
    (*sums)[6000 + 5001] = infinity;
    (*sums)[12000 + 77] = -1.0f;
  }
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(c));
}

TEST(VerticalSlashGpuTest, EqualsTheCpuOnAQuarterMillionKeys) {
  Case c = MakeCase((1 << 18) - 5000, 5000, {{1000, 6096}, {3500, 100}}, 13);
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(c));
  // Distances far apart: as many ranges as there can be.
  for (int64_t i = 0; i < c.kv_len; ++i) {
    c.diagonal_sums[i] = i % 192 == 0 ? 1.0f : 0.0f;
  }
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(c));
}

// Thousands of scores that share their leading bits with the smallest taken: no
// round can leave the others out.
TEST(VerticalSlashGpuTest, ScoresOfOneMagnitude) {
  Case c = MakeCase(40000, 500, {{1000, 6096}, {3500, 30000}}, 21);
  std::mt19937 random(22);
  std::uniform_real_distribution<float> uniform(1.0f, 1.2f);
  for (std::vector<float>* sums : {&c.column_sums, &c.diagonal_sums}) {
    for (float& sum : *sums) sum = uniform(random);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(c));
}

TEST(VerticalSlashGpuTest, RowsMayEndBeforeTheKeysDo) {
  Case c = MakeCase(0, 4000, {{100, 500}, {500, 200}}, 14);
  c.q_begin = 1000;
  for (const int64_t q_len : {1, 100, 1000, 1100, 3000}) {
    SCOPED_TRACE(q_len);
    c.q_len = q_len;
    ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(c));
  }
}

TEST(VerticalSlashGpuTest, RandomShapesAndSizes) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    std::vector<VerticalSlashSize> sizes(1 + random() % 5);
    for (VerticalSlashSize& size : sizes) {
      size = {.vertical = static_cast<int32_t>(1 + random() % 2000),
              .slash = static_cast<int32_t>(1 + random() % 4000)};
    }
    const int64_t q_begin = random() % 2 == 0 ? 0 : random() % 20000;
    ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(
        MakeCase(q_begin, 1 + random() % 3000, sizes, random())));
  }
}

TEST(VerticalSlashGpuTest, PairsAddUpOverLaunches) {
  const Case c = MakeCase(0, 1000, {{30, 100}}, 15);
  GpuPlan gpu(c);
  const uint64_t once = gpu.Pairs();
  gpu.Slice(0, 1000);
  EXPECT_EQ(gpu.Pairs(), 2 * once);
  EXPECT_GT(once, 0);
}

TEST(CostDigitTest, AscendsBySixPercent) {
  EXPECT_EQ(CostDigit(0), 0);
  EXPECT_EQ(CostDigit(31), 31);
  EXPECT_EQ(CostDigit(1u << 31), 255);
  for (uint32_t cost = 1; cost < 31 << 14; ++cost) {
    ASSERT_GE(CostDigit(cost), CostDigit(cost - 1));
    ASSERT_LT(CostDigit(cost), 255);
    // The next digit begins at most a sixteenth later.
    ASSERT_GT(CostDigit(cost + cost / 16 + 1), CostDigit(cost));
  }
}

// One choice, its rows planned piece by piece, as where a plan of all of them
// would not fit: the pieces hold what the whole does.
TEST(VerticalSlashGpuTest, SlicesOfAChoiceMakeUpItsPlan) {
  Case c = MakeCase(700, 5000, {{1000, 6096}, {100, 800}, {600, 100}}, 18);
  c.sizes[1].mass = 0.8f;
  const TilePlan whole = HostPlan(c);
  GpuPlan gpu(c);
  const uint64_t all = gpu.Pairs();
  for (int64_t begin = 700; begin < 5700;) {
    // To a border of query tiles, but for the last.
    const int64_t end = std::min<int64_t>((begin + 1000) / 128 * 128, 5700);
    SCOPED_TRACE(absl::StrCat("rows ", begin, " to ", end));
    gpu.Slice(begin, end - begin);
    const int64_t before = begin / 128 - 700 / 128;
    for (int64_t head = 0; head < 3; ++head) {
      for (int64_t tile = 0; tile < gpu.plan().num_q_tiles; ++tile) {
        const Cell got = gpu.Expand(head * gpu.plan().num_q_tiles + tile);
        const Cell want =
            HostCell(whole, head * whole.num_q_tiles() + before + tile);
        ASSERT_EQ(got.tiles, want.tiles) << "head " << head << " tile " << tile;
        ASSERT_EQ(got.columns, want.columns);
      }
    }
    begin = end;
  }
  EXPECT_EQ(gpu.Pairs(), 2 * all);
}

TEST(VerticalSlashGpuTest, AMassKeepsWhatTheCpuDoes) {
  std::vector<VerticalSlashSize> sizes;
  for (const float mass : {0.0f, 0.01f, 0.5f, 0.9f, 0.999f, 1.0f, 2.0f}) {
    for (const auto& [vertical, slash] :
         std::vector<std::pair<int32_t, int32_t>>{
             {1000, 6096}, {30, 800}, {1 << 20, 1 << 20}, {3500, 100}}) {
      sizes.push_back({.vertical = vertical, .slash = slash, .mass = mass});
    }
  }
  sizes.push_back(StaticSize(40, 300));
  sizes.back().mass = 0.5f;
  sizes.push_back({.forced_columns = 0, .forced_distances = 1, .mass = 0.3f});
  Case c = MakeCase(3000, 6001, sizes, 19);
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(c));
  // Many equals at the border of what is kept.
  std::mt19937 random(20);
  for (std::vector<float>* sums : {&c.column_sums, &c.diagonal_sums}) {
    for (float& sum : *sums) sum = static_cast<float>(random() % 4);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(c));
  // Nothing weighs anything; all are infinite; NaN among the rest.
  for (const float value : {0.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    for (size_t i = 0; i<c.column_sums.size(); i += value> 0 ? 1 : 2) {
      c.column_sums[i] = c.diagonal_sums[i] = value;
    }
    SCOPED_TRACE(value);
    ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(c));
  }
}

TEST(VerticalSlashGpuTest, RefusesWhatDoesNotFit) {
  const std::vector<VerticalSlashSize> sizes = {{}};
  EXPECT_THAT(LaunchVerticalSlashChoice({.sizes = sizes, .kv_len = 100},
                                        nullptr, 1000, nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("scratch of 1000 bytes")));
  EXPECT_THAT(
      LaunchVerticalSlashChoice({.kv_len = 100}, nullptr, 1000, nullptr),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("sizes has 0 heads")));
  EXPECT_THAT(
      LaunchVerticalSlashChoice({.sizes = sizes}, nullptr, 1000, nullptr),
      StatusIs(absl::StatusCode::kInvalidArgument));
  const VerticalSlashChoice choice = {
      .kv_len = 100, .num_heads = 1, .max_columns = {100}};
  EXPECT_THAT(
      LaunchVerticalSlashPlan(choice, {.q_len = 100}, nullptr, 100, nullptr),
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr("scratch of 100 bytes")));
  EXPECT_THAT(
      LaunchVerticalSlashPlan(choice, {.q_len = 101}, nullptr, 1000, nullptr),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("kv_len")));
}

TEST(VerticalSlashGpuTest, AMillionTokensAndLongSlicesStayUnder300Megabytes) {
  const std::vector<VerticalSlashSize> sizes(32, {3500, 6096});
  for (const int64_t slice : {16384, 65536}) {
    EXPECT_LT(VerticalSlashChoiceBytes(1 << 20, sizes) +
                  VerticalSlashPlanBytes(slice, 1 << 20, sizes),
              300'000'000);
  }
  // Larger sizes, rows and keys never need less.
  const std::vector<VerticalSlashSize> small = {{30, 100}};
  const std::vector<VerticalSlashSize> large = {{31, 101}};
  EXPECT_LE(VerticalSlashChoiceBytes(1000, small),
            VerticalSlashChoiceBytes(1001, large));
  EXPECT_LE(VerticalSlashPlanBytes(100, 1000, small),
            VerticalSlashPlanBytes(101, 1001, large));
}

// The attention of the shared form is, bit for bit, that of the same plan with
// every cell's ranges written out.
TEST(VerticalSlashGpuTest, AttentionRunsTheSharedForm) {
  constexpr int64_t kHeads = 4;
  constexpr int64_t kDim = 64;
  // Ends in the upper half of a query tile: no tile is there that no row sees.
  const Case c = MakeCase(
      1000, 3070, {{100, 300}, {30, 100}, {800, 50}, {1 << 20, 1 << 20}}, 16);
  const GpuPlan gpu(c);
  const TilePlan host = HostPlan(c);
  const Stream& stream = gpu.stream();
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const UploadedPlan uploaded,
      UploadedPlan::Upload(host, kHeads, kHeads, stream));
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t rows) {
    std::vector<BFloat16> values(kHeads * rows * kDim);
    for (BFloat16& value : values) value = BFloat16(normal(random));
    return ToDevice(values, stream);
  };
  const auto q = draw(c.q_len);
  const auto k = draw(c.kv_len);
  const auto v = draw(c.kv_len);
  const auto run = [&](const DeviceTilePlan& plan, auto launch) {
    auto o = draw(c.q_len);
    const SparseAttentionParams params = {.dtype = DType::kBF16,
                                          .q = q.data(),
                                          .k = k.data(),
                                          .v = v.data(),
                                          .o = o.data(),
                                          .stride_q_row = kDim,
                                          .stride_q_head = c.q_len * kDim,
                                          .stride_kv_row = kDim,
                                          .stride_kv_head = c.kv_len * kDim,
                                          .stride_o_row = kDim,
                                          .stride_o_head = c.q_len * kDim,
                                          .num_q_heads = kHeads,
                                          .num_kv_heads = kHeads,
                                          .head_dim = kDim,
                                          .scale = 0.125f};
    OVERTURE_EXPECT_OK(launch(params, plan, stream.get()));
    std::vector<uint16_t> bits;
    for (const BFloat16& value : ToHost(o, stream)) bits.push_back(value.bits);
    return bits;
  };
  EXPECT_EQ(run(gpu.plan(), LaunchSparseAttention),
            run(uploaded.plan(), LaunchSparseAttention));
  EXPECT_EQ(run(gpu.plan(), LaunchSparseAttentionSm80),
            run(uploaded.plan(), LaunchSparseAttentionSm80));
}

}  // namespace
}  // namespace overture::kernels
