#include "kernels/selectors/hybrid_gpu.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/selectors/hybrid.h"
#include "kernels/selectors/vertical_slash.h"
#include "kernels/selectors/work_order.h"
#include "kernels/sparse_attention/sparse_attention.h"
#include "kernels/sparse_attention/uploaded_plan.h"
#include "tests/support/device_copy.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::overture::testing::ToDevice;
using ::overture::testing::ToHost;
using ::testing::HasSubstr;

// Rows, what is kept of columns and distances, and the blocks.
struct Case {
  int64_t q_begin = 0;
  int64_t q_len = 1;
  int64_t kv_len = 1;
  std::vector<VerticalSlashSize> sizes;
  std::vector<BlockRule> rules;
  std::vector<float> column_sums;    // [heads, kv_len]
  std::vector<float> diagonal_sums;  // [heads, kv_len]
  BlockSets sets;
};

Case MakeCase(int64_t q_begin, int64_t q_len, int64_t kv_len,
              std::vector<VerticalSlashSize> sizes, double block_chance,
              uint32_t seed) {
  Case c{.q_begin = q_begin,
         .q_len = q_len,
         .kv_len = kv_len,
         .sizes = std::move(sizes)};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(-12.0f, 6.0f);
  for (std::vector<float>* sums : {&c.column_sums, &c.diagonal_sums}) {
    sums->resize(c.sizes.size() * kv_len);
    for (float& sum : *sums) sum = std::exp(normal(random));
  }
  const auto heads = static_cast<int64_t>(c.sizes.size());
  for (int64_t head = 0; head < heads; ++head) {
    c.rules.push_back({.correct_means = head % 2 == 0});
  }
  const int64_t first = q_begin / kBlockTileRows;
  const int64_t last = (q_begin + q_len - 1) / kBlockTileRows;
  c.sets = {.q_begin = q_begin,
            .q_len = q_len,
            .num_heads = static_cast<int32_t>(heads),
            .num_q_tiles = last - first + 1,
            .num_words = BlockWords(last)};
  const int64_t cells = heads * c.sets.num_q_tiles;
  c.sets.bits.resize(cells * c.sets.num_words);
  std::bernoulli_distribution take(block_chance);
  for (int64_t cell = 0; cell < cells; ++cell) {
    const int64_t before = first + cell % c.sets.num_q_tiles;
    for (int64_t bit = 1; bit <= before; ++bit) {
      if (take(random)) {
        c.sets.bits[cell * c.sets.num_words + bit / 32] |= 1u << (bit % 32);
      }
    }
  }
  return c;
}

TilePlan HostPlan(const Case& c) {
  std::vector<VerticalSlashIndex> indices;
  for (size_t head = 0; head < c.sizes.size(); ++head) {
    const auto sums = [&](const std::vector<float>& all) {
      return absl::MakeConstSpan(all).subspan(head * c.kv_len, c.kv_len);
    };
    indices.push_back(SelectVerticalSlash(
        sums(c.column_sums), sums(c.diagonal_sums), c.sizes[head]));
  }
  auto plan = BuildVerticalSlashPlan({.q_begin = c.q_begin,
                                      .q_len = c.q_len,
                                      .kv_len = c.kv_len,
                                      .tile_rows = kGpuTileRows,
                                      .tile_keys = kGpuTileKeys},
                                     indices, RangeForm::kAligned);
  EXPECT_TRUE(plan.ok()) << plan.status();
  auto united = AddBlocks(*plan, c.sets, c.rules);
  EXPECT_TRUE(united.ok()) << united.status();
  EXPECT_TRUE(Validate(*united).ok()) << Validate(*united);
  return *std::move(united);
}

// What one cell computes, written out.
struct Cell {
  std::vector<int64_t> tiles;  // first keys, ascending
  std::vector<int32_t> columns;
  std::vector<int32_t> means;
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
  if (plan.mean_offsets.empty()) return cell;
  for (int64_t i = plan.mean_offsets[index]; i < plan.mean_offsets[index + 1];
       ++i) {
    for (int32_t b = 0; b < plan.mean_blocks[i].count; ++b) {
      cell.means.push_back(plan.mean_blocks[i].begin + b);
    }
  }
  return cell;
}

// A launch, its memory, and the plan read back.
class GpuPlan {
 public:
  explicit GpuPlan(const Case& c) : case_(c) {
    auto stream = Stream::Create();
    EXPECT_TRUE(stream.ok()) << stream.status();
    stream_.emplace(*std::move(stream));
    column_sums_ = ToDevice(c.column_sums, *stream_);
    diagonal_sums_ = ToDevice(c.diagonal_sums, *stream_);
    pairs_ = ToDevice(std::vector<uint64_t>{kPairsBefore}, *stream_);
    bits_ = ToDevice(c.sets.bits, *stream_);
    // Filled with rubbish, so that what nobody writes shows.
    const auto rubbish = [&](int64_t bytes) {
      return ToDevice(std::vector<std::byte>(bytes, std::byte{0xa5}), *stream_);
    };
    choice_scratch_ = rubbish(VerticalSlashChoiceBytes(c.kv_len, c.sizes));
    auto choice = LaunchVerticalSlashChoice(
        {.column_sums = column_sums_.data(),
         .diagonal_sums = diagonal_sums_.data(),
         .sizes = c.sizes,
         .kv_len = c.kv_len},
        choice_scratch_.data(), choice_scratch_.bytes(), stream_->get());
    EXPECT_TRUE(choice.ok()) << choice.status();
    const bool with_means =
        std::any_of(c.rules.begin(), c.rules.end(),
                    [](const BlockRule& rule) { return rule.correct_means; });
    scratch_ = rubbish(HybridPlanBytes(c.q_len, c.kv_len, c.sizes, with_means));
    auto launched =
        LaunchHybridPlan(*choice,
                         {.q_begin = c.q_begin,
                          .q_len = c.q_len,
                          .blocks = bits_.data(),
                          .rules = c.rules,
                          .pairs = pairs_.data()},
                         scratch_.data(), scratch_.bytes(), stream_->get());
    EXPECT_TRUE(launched.ok()) << launched.status();
    if (!launched.ok()) return;
    plan_ = *launched;
    host_ = ToHost(scratch_, *stream_);
  }

  const DeviceTilePlan& plan() const { return plan_; }
  const Stream& stream() const { return *stream_; }
  const PlanCell& cell(int64_t index) const { return Host(plan_.cells)[index]; }

  // Without the tiles that no row sees.
  Cell Expand(int64_t index) const {
    const PlanCell& from = cell(index);
    Cell cell;
    const KeyRange* range = Host(plan_.ranges) + from.range_end;
    for (int32_t left = from.num_tiles; left > 0;) {
      --range;
      for (int32_t t = range->num_tiles - 1; t >= 0 && left > 0; --t, --left) {
        const int64_t key =
            int64_t{from.key_origin} + range->begin + t * kGpuTileKeys;
        if (key < case_.q_begin + case_.q_len) cell.tiles.push_back(key);
      }
    }
    std::reverse(cell.tiles.begin(), cell.tiles.end());
    const int32_t* columns = Host(plan_.columns) + from.column_begin;
    cell.columns.assign(columns, columns + from.num_columns);
    if (plan_.mean_blocks == nullptr) return cell;
    const BlockInterval* blocks =
        Host(plan_.mean_blocks) + Host(plan_.mean_offsets)[index];
    const BlockInterval* end =
        Host(plan_.mean_blocks) + Host(plan_.mean_offsets)[index + 1];
    int64_t read = 0;
    for (int32_t left = from.num_means; left > 0; ++blocks, ++read) {
      EXPECT_LT(blocks, end);
      EXPECT_GT(blocks->count, 0);
      for (int32_t b = 0; b < blocks->count; ++b, --left) {
        cell.means.push_back(blocks->begin + b);
      }
    }
    for (; read % 32 != 0; ++blocks, ++read) EXPECT_EQ(blocks->count, 0);
    EXPECT_LE(blocks, end);
    return cell;
  }

  std::vector<int32_t> Order() const {
    const int32_t* order = Host(plan_.order);
    return {order, order + int64_t{plan_.num_lists} * plan_.num_q_tiles};
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
  DeviceBuffer<uint32_t> bits_;
  DeviceBuffer<std::byte> choice_scratch_;
  DeviceBuffer<std::byte> scratch_;
  std::vector<std::byte> host_;
  DeviceTilePlan plan_;
};

void ExpectEqualsCpu(const Case& c) {
  const GpuPlan gpu(c);
  const TilePlan host = HostPlan(c);
  const auto heads = static_cast<int64_t>(c.sizes.size());
  ASSERT_EQ(gpu.plan().num_lists, heads);
  ASSERT_EQ(gpu.plan().num_q_tiles, host.num_q_tiles());
  for (int64_t i = 0; i < host.num_cells(); ++i) {
    const Cell got = gpu.Expand(i);
    const Cell want = HostCell(host, i);
    ASSERT_EQ(got.tiles, want.tiles) << "cell " << i;
    ASSERT_EQ(got.columns, want.columns) << "cell " << i;
    ASSERT_EQ(got.means, want.means) << "cell " << i;
  }

  // Every item once, most expensive first as far as the order tells.
  const std::vector<int32_t> order = gpu.Order();
  const auto digit = [&](int32_t item) {
    const PlanCell& cell = gpu.cell(item);
    return CostDigit(
        CellCost(cell.num_tiles, cell.num_columns + cell.num_means));
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

const std::vector<VerticalSlashSize> kSizes = {
    {1000, 2000}, {30, 800}, StaticSize(4, 200), {3500, 100}};

TEST(HybridGpuTest, EqualsTheCpuAtOddLengthsAndPrefixOffsets) {
  uint32_t seed = 1;
  for (const auto& [q_begin, q_len] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1},
                                                {0, 64},
                                                {0, 129},
                                                {0, 3001},
                                                {1, 1},
                                                {63, 1},
                                                {127, 2},
                                                {3967, 1},
                                                {3968, 1},
                                                {4095, 1},
                                                {4095, 200},
                                                {10007, 1001},
                                                {40000, 500}}) {
    for (const double chance : {0.0, 0.05, 0.6}) {
      SCOPED_TRACE(
          absl::StrCat("q_begin ", q_begin, " q_len ", q_len, " ", chance));
      ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(
          MakeCase(q_begin, q_len, q_begin + q_len, kSizes, chance, seed++)));
    }
  }
}

TEST(HybridGpuTest, RowsMayEndBeforeTheKeysDo) {
  for (const int64_t q_begin : {1000, 2048}) {
    for (const int64_t q_len : {1, 128, 700}) {
      SCOPED_TRACE(absl::StrCat(q_begin, " ", q_len));
      ASSERT_NO_FATAL_FAILURE(
          ExpectEqualsCpu(MakeCase(q_begin, q_len, 5000, kSizes, 0.2, 77)));
    }
  }
}

TEST(HybridGpuTest, EveryOtherBlockIsTheMostRangesThereAre) {
  Case c = MakeCase((1 << 18) - 300, 300, 1 << 18,
                    {StaticSize(0, 1), StaticSize(0, 1)}, 0, 5);
  for (size_t i = 0; i < c.sets.bits.size(); ++i) c.sets.bits[i] = 0xaaaaaaaa;
  // No bit beyond block 0.
  for (int64_t cell = 0; cell < 2 * c.sets.num_q_tiles; ++cell) {
    const int64_t before =
        c.q_begin / kBlockTileRows + cell % c.sets.num_q_tiles;
    for (int64_t bit = before + 1; bit < c.sets.num_words * 32; ++bit) {
      c.sets.bits[cell * c.sets.num_words + bit / 32] &= ~(1u << (bit % 32));
    }
  }
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsCpu(c));
}

TEST(HybridGpuTest, RandomShapesAndSizes) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    std::vector<VerticalSlashSize> sizes(1 + random() % 5);
    for (VerticalSlashSize& size : sizes) {
      size = {.vertical = static_cast<int32_t>(1 + random() % 2000),
              .slash = static_cast<int32_t>(1 + random() % 4000)};
    }
    const int64_t q_begin = random() % 2 == 0 ? 0 : random() % 20000;
    const int64_t q_len = 1 + random() % 2000;
    ASSERT_NO_FATAL_FAILURE(
        ExpectEqualsCpu(MakeCase(q_begin, q_len, q_begin + q_len, sizes,
                                 (random() % 100) / 100.0, random())));
  }
}

// The attention of the plan is, bit for bit, that of the same plan uploaded.
TEST(HybridGpuTest, AttentionRunsIt) {
  constexpr int64_t kHeads = 4, kDim = 64;
  // Ends in the upper half of a query tile: no tile is there that no row sees.
  const Case c = MakeCase(3000, 1190, 4190, kSizes, 0.1, 6);
  const GpuPlan gpu(c);
  const TilePlan host = HostPlan(c);
  const Stream& stream = gpu.stream();
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const UploadedPlan uploaded,
      UploadedPlan::Upload(host, kHeads, kHeads, stream));
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto tensor = [&](int64_t rows) {
    std::vector<BFloat16> values(kHeads * rows * kDim);
    for (BFloat16& value : values) value = BFloat16(normal(random));
    return ToDevice(values, stream);
  };
  const int64_t blocks = c.kv_len / kMeanBlockKeys;
  const auto q = tensor(c.q_len), k = tensor(c.kv_len), v = tensor(c.kv_len);
  const auto k_means = tensor(blocks), v_means = tensor(blocks);
  const auto run = [&](const DeviceTilePlan& plan) {
    auto o = ToDevice(std::vector<BFloat16>(kHeads * c.q_len * kDim), stream);
    EXPECT_TRUE(LaunchSparseAttention({.q = q.data(),
                                       .k = k.data(),
                                       .v = v.data(),
                                       .o = o.data(),
                                       .k_means = k_means.data(),
                                       .v_means = v_means.data(),
                                       .stride_q_row = kHeads * kDim,
                                       .stride_q_head = kDim,
                                       .stride_kv_row = kDim,
                                       .stride_kv_head = c.kv_len * kDim,
                                       .stride_mean_row = kDim,
                                       .stride_mean_head = blocks * kDim,
                                       .stride_o_row = kHeads * kDim,
                                       .stride_o_head = kDim,
                                       .num_q_heads = kHeads,
                                       .num_kv_heads = kHeads,
                                       .head_dim = kDim,
                                       .scale = 0.125f},
                                      plan, stream.get())
                    .ok());
    std::vector<uint16_t> bits;
    for (const BFloat16 value : ToHost(o, stream)) bits.push_back(value.bits);
    return bits;
  };
  EXPECT_EQ(run(gpu.plan()), run(uploaded.plan()));
}

TEST(HybridGpuTest, RefusesWhatDoesNotFit) {
  const std::vector<VerticalSlashSize> sizes = {{}};
  const std::vector<BlockRule> rules(1);
  const VerticalSlashChoice choice = {
      .kv_len = 100, .num_heads = 1, .max_columns = {100}};
  EXPECT_THAT(LaunchHybridPlan(choice, {.q_len = 100, .rules = rules}, nullptr,
                               1000, nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("scratch of 1000 bytes")));
  EXPECT_THAT(
      LaunchHybridPlan(choice, {.q_len = 100}, nullptr, 1000, nullptr),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 heads")));
  EXPECT_THAT(
      LaunchHybridPlan(choice, {.q_len = 101, .rules = rules}, nullptr, 1000,
                       nullptr),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("kv_len")));
}

TEST(HybridGpuTest, PlansOfAsManyRowsAsItSaysAreBounded) {
  const std::vector<VerticalSlashSize> sizes(32, {1000, 6096});
  for (const bool with_means : {false, true}) {
    for (const int64_t kv_len : {1 << 14, 1 << 17, 1 << 20}) {
      const int64_t rows = HybridPlanRows(65536, kv_len, sizes, with_means);
      EXPECT_GE(rows, std::min<int64_t>(kv_len, 4096));
      EXPECT_LE(rows, 65536);
      EXPECT_LE(HybridPlanBytes(rows, kv_len, sizes, with_means),
                kHybridPlanBytes);
    }
  }
}

}  // namespace
}  // namespace overture::kernels
