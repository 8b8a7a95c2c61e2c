// Vertical-slash over a whole prompt against MInference's own semantics (arXiv
// 2407.02490, section 3.2 and its released code), written down here once more,
// slowly and apart from ours: estimate, forced ones by infinity, top-k by a
// sort, index by a walk over all distances. All sizes that its published
// configurations hold.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/probe_attention/probe_attention_cpu.h"
#include "kernels/selectors/vertical_slash.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

constexpr int64_t kDim = 16;
constexpr float kScale = 0.25f;
constexpr int64_t kTile = 64;

struct Prompt {
  int64_t n;
  std::vector<float> q;  // [n, kDim]
  std::vector<float> k;
};

Prompt MakePrompt(int64_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal(0, 1.5f);
  Prompt prompt{.n = n,
                .q = std::vector<float>(n * kDim),
                .k = std::vector<float>(n * kDim)};
  for (float& x : prompt.q) x = normal(rng);
  for (float& x : prompt.k) x = normal(rng);
  return prompt;
}

struct Scores {
  std::vector<double> verticals;  // by column
  std::vector<double> slashes;    // by distance
};

Scores Estimate(const Prompt& prompt) {
  const int64_t n = prompt.n;
  Scores scores{std::vector<double>(n), std::vector<double>(n)};
  for (int64_t row = n - std::min<int64_t>(64, n); row < n; ++row) {
    std::vector<double> p(row + 1);
    double sum = 0;
    for (int64_t c = 0; c <= row; ++c) {
      double logit = 0;
      for (int64_t i = 0; i < kDim; ++i) {
        logit += double{prompt.q[row * kDim + i]} * prompt.k[c * kDim + i];
      }
      sum += p[c] = std::exp(logit * kScale);
    }
    for (int64_t c = 0; c <= row; ++c) {
      scores.verticals[c] += p[c] / sum;
      scores.slashes[row - c] += p[c] / sum;
    }
  }
  return scores;
}

// Ties to the smaller index, which the released top-k leaves open.
std::vector<int32_t> TopK(std::vector<double> scores, int64_t count,
                          int64_t forced) {
  for (int64_t i = 0; i < forced && i < std::ssize(scores); ++i) {
    scores[i] = std::numeric_limits<double>::infinity();
  }
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  order.resize(std::min<int64_t>(count, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

struct Index {
  std::vector<int64_t> blocks;  // first keys of blocks of 64
  std::vector<int32_t> columns;
  friend bool operator==(const Index&, const Index&) = default;
};

// Of the query tile that ends at `e`.
Index Convert(const std::vector<int32_t>& verticals,
              const std::vector<int32_t>& slashes, int64_t e) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (auto d = slashes.rbegin(); d != slashes.rend(); ++d) {
    if (*d >= e) continue;
    const int64_t end = std::max<int64_t>(e - *d, kTile);
    if (ranges.empty() || end > ranges.back().second + kTile) {
      ranges.push_back({end - kTile, end});
    } else if (end > ranges.back().second) {
      ranges.back().second += kTile;
    }
  }
  Index index;
  for (const auto& [begin, end] : ranges) {
    for (int64_t b = begin; b < end; b += kTile) index.blocks.push_back(b);
  }
  for (const int32_t c : verticals) {
    bool inside = false, left_of_one = false;
    for (const auto& [begin, end] : ranges) {
      inside = inside || (c >= begin && c < end);
      left_of_one = left_of_one || c < begin;
    }
    if (left_of_one && !inside) index.columns.push_back(c);
  }
  return index;
}

Index OfPlan(const TilePlan& plan, int64_t tile) {
  Index index;
  for (int64_t i = plan.range_offsets[tile]; i < plan.range_offsets[tile + 1];
       ++i) {
    for (int64_t t = 0; t < plan.ranges[i].num_tiles; ++t) {
      index.blocks.push_back(plan.ranges[i].begin + t * kTile);
    }
  }
  for (int64_t i = plan.interval_offsets[tile];
       i < plan.interval_offsets[tile + 1]; ++i) {
    const auto first = plan.columns.begin() + plan.intervals[i].begin;
    index.columns.insert(index.columns.end(), first,
                         first + plan.intervals[i].count);
  }
  return index;
}

// Equal but for scores that lie closer together than fp32 can tell.
void ExpectSameChoice(const std::vector<int32_t>& got,
                      const std::vector<int32_t>& want,
                      const std::vector<double>& scores) {
  ASSERT_EQ(got.size(), want.size());
  std::vector<int32_t> more, missing;
  std::set_difference(got.begin(), got.end(), want.begin(), want.end(),
                      std::back_inserter(more));
  std::set_difference(want.begin(), want.end(), got.begin(), got.end(),
                      std::back_inserter(missing));
  // A logit, at most 32 in size, is off by kDim + 4 roundings of 2^-24, twice
  // (its own and the sum's it is divided by); 64 additions add one each.
  constexpr double kTolerance = (2 * (kDim + 4) * 32 + 64) * 0x1p-24;
  for (const int32_t in : more) {
    for (const int32_t out : missing) {
      EXPECT_NEAR(scores[in], scores[out], scores[out] * kTolerance);
    }
  }
}

class ConformanceTest : public ::testing::TestWithParam<VerticalSlashSize> {};
INSTANTIATE_TEST_SUITE_P(
    PublishedSizes, ConformanceTest,
    ::testing::Values(VerticalSlashSize{1000, 6096}, VerticalSlashSize{30, 800},
                      VerticalSlashSize{100, 800}, VerticalSlashSize{100, 750},
                      VerticalSlashSize{500, 700}, VerticalSlashSize{3500, 100},
                      VerticalSlashSize{512, 2048},
                      VerticalSlashSize{1000, 4096}),
    [](const auto& info) {
      return absl::StrCat(info.param.vertical, "_", info.param.slash);
    });

TEST_P(ConformanceTest, EqualsTheReleasedSemanticsOnRandomPrompts) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 rng(seed);
  // The longest holds more distances than any size keeps.
  for (const int64_t n : std::initializer_list<int64_t>{
           1, 64, static_cast<int64_t>(65 + rng() % 900),
           static_cast<int64_t>(7000 + rng() % 200)}) {
    SCOPED_TRACE(absl::StrCat(n, " tokens"));
    const Prompt prompt = MakePrompt(n, rng);
    const Scores scores = Estimate(prompt);

    std::vector<float> columns(n), diagonals(n);
    const int64_t rows = std::min<int64_t>(kProbeRows, n);
    OVERTURE_ASSERT_OK(
        ProbeAttentionCpu({.dtype = DType::kF32,
                           .q = &prompt.q[(n - rows) * kDim],
                           .k = prompt.k.data(),
                           .stride_q_row = kDim,
                           .stride_k_row = kDim,
                           .num_q_heads = 1,
                           .num_kv_heads = 1,
                           .head_dim = kDim,
                           .num_rows = static_cast<int32_t>(rows),
                           .kv_len = n,
                           .scale = kScale,
                           .column_sums = columns.data(),
                           .diagonal_sums = diagonals.data()}));
    const VerticalSlashIndex index =
        SelectVerticalSlash(columns, diagonals, GetParam());
    const int64_t num_slashes = std::max(GetParam().slash, 50);
    ASSERT_NO_FATAL_FAILURE(ExpectSameChoice(
        index.verticals, TopK(scores.verticals, GetParam().vertical, 30),
        scores.verticals));
    ASSERT_NO_FATAL_FAILURE(ExpectSameChoice(
        index.slashes, TopK(scores.slashes, num_slashes, 100), scores.slashes));

    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const TilePlan plan,
        BuildVerticalSlashPlan({.q_len = n, .kv_len = n}, {index},
                               RangeForm::kExact));
    for (int64_t tile = 0; tile < plan.num_q_tiles(); ++tile) {
      ASSERT_EQ(OfPlan(plan, tile),
                Convert(index.verticals, index.slashes, (tile + 1) * kTile))
          << "query tile " << tile;
    }
  }
}

}  // namespace
}  // namespace overture::kernels
