#include "tests/support/random_plan.h"

#include <algorithm>
#include <set>
#include <vector>

namespace overture::testing {
namespace {

using kernels::BlockInterval;
using kernels::ColumnInterval;
using kernels::KeyRange;
using kernels::TilePlan;

bool Chance(double p, std::mt19937& random) {
  return std::uniform_real_distribution<double>(0, 1)(random) < p;
}

int64_t Uniform(int64_t low, int64_t high, std::mt19937& random) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

// Ranges of the query tile [s, e): some earlier ones, then one that reaches
// over the diagonal to e or past it.
std::vector<KeyRange> RandomRanges(const TilePlan& plan, int64_t s, int64_t e,
                                   double density, std::mt19937& random) {
  const int64_t keys = plan.tile_keys;
  const int64_t tiles = (e - s + keys - 1) / keys;
  // Up to a tile's worth before s and up to a key less than one past e.
  const int64_t last_begin =
      std::max<int64_t>(0, e - tiles * keys + Uniform(0, keys - 1, random));
  const int64_t diagonal = std::min(last_begin, s);
  std::vector<KeyRange> ranges;
  int64_t position = 0;
  while (true) {
    const int64_t gap = Uniform(
        0, static_cast<int64_t>(2 * keys / std::max(density, 0.01)), random);
    const int64_t count = Uniform(1, 3, random);
    if (position + gap + count * keys > diagonal) break;
    ranges.push_back({.begin = static_cast<int32_t>(position + gap),
                      .num_tiles = static_cast<int32_t>(count)});
    position += gap + count * keys;
  }
  const int64_t last_tiles = (e - diagonal + keys - 1) / keys;
  ranges.push_back({.begin = static_cast<int32_t>(diagonal),
                    .num_tiles = static_cast<int32_t>(last_tiles)});
  return ranges;
}

// The indices of columns that lie before s and in no range, as intervals; one
// in eight of them is dropped, so that intervals break.
std::vector<ColumnInterval> RandomIntervals(const std::vector<int32_t>& columns,
                                            const TilePlan& plan, int64_t s,
                                            const std::vector<KeyRange>& ranges,
                                            std::mt19937& random) {
  std::vector<ColumnInterval> intervals;
  for (size_t i = 0; i < columns.size(); ++i) {
    const int64_t column = columns[i];
    const bool covered =
        std::any_of(ranges.begin(), ranges.end(), [&](const KeyRange& range) {
          return column >= range.begin &&
                 column <
                     range.begin + int64_t{range.num_tiles} * plan.tile_keys;
        });
    if (column >= s || covered || Chance(0.125, random)) continue;
    const auto index = static_cast<int32_t>(i);
    if (!intervals.empty() &&
        intervals.back().begin + intervals.back().count == index) {
      ++intervals.back().count;
    } else {
      intervals.push_back({.begin = index, .count = 1});
    }
  }
  return intervals;
}

// Blocks before s in which the cell has neither a range nor a column.
std::vector<BlockInterval> RandomMeans(
    const std::vector<int32_t>& columns, const TilePlan& plan, int64_t s,
    const std::vector<KeyRange>& ranges,
    const std::vector<ColumnInterval>& intervals, double chance,
    std::mt19937& random) {
  std::vector<bool> kept(plan.kv_len / kernels::kMeanBlockKeys + 1);
  for (const KeyRange& range : ranges) {
    const int64_t end = range.begin + int64_t{range.num_tiles} * plan.tile_keys;
    for (int64_t k = range.begin; k < std::min(end, plan.kv_len); ++k) {
      kept[k / kernels::kMeanBlockKeys] = true;
    }
  }
  for (const ColumnInterval& interval : intervals) {
    for (int32_t i = 0; i < interval.count; ++i) {
      kept[columns[interval.begin + i] / kernels::kMeanBlockKeys] = true;
    }
  }
  std::vector<BlockInterval> means;
  for (int32_t block = 0; (block + 1) * kernels::kMeanBlockKeys <= s; ++block) {
    if (kept[block] || !Chance(chance, random)) continue;
    if (!means.empty() && means.back().begin + means.back().count == block) {
      ++means.back().count;
    } else {
      means.push_back({.begin = block, .count = 1});
    }
  }
  return means;
}

// Deals what the cells of `whole` hold in one CSR array to the two halves.
template <typename T>
void Deal(const TilePlan& whole, std::vector<int64_t> TilePlan::*offsets,
          std::vector<T> TilePlan::*entries, SplitPlans& halves,
          std::mt19937& random) {
  if ((whole.*offsets).empty()) return;
  for (TilePlan* half : {&halves.first, &halves.second}) {
    (half->*entries).clear();
    half->*offsets = {0};
  }
  for (int64_t cell = 0; cell < whole.num_cells(); ++cell) {
    for (int64_t i = (whole.*offsets)[cell]; i < (whole.*offsets)[cell + 1];
         ++i) {
      TilePlan& half = Chance(0.5, random) ? halves.first : halves.second;
      (half.*entries).push_back((whole.*entries)[i]);
    }
    for (TilePlan* half : {&halves.first, &halves.second}) {
      (half->*offsets).push_back(static_cast<int64_t>((half->*entries).size()));
    }
  }
}

}  // namespace

TilePlan RandomPlan(const RandomPlanOptions& options, std::mt19937& random) {
  TilePlan plan;
  plan.tile_rows = options.tile_rows;
  plan.tile_keys = options.tile_keys;
  plan.q_begin = options.q_begin;
  plan.q_len = options.q_len;
  plan.kv_len = options.kv_len;
  plan.num_lists = options.num_lists;
  plan.range_offsets = {0};
  plan.interval_offsets = {0};
  plan.column_offsets = {0};
  if (options.means > 0) plan.mean_offsets = {0};
  for (int32_t list = 0; list < plan.num_lists; ++list) {
    std::set<int32_t> chosen;
    for (int32_t i = 0; i < options.num_columns; ++i) {
      chosen.insert(static_cast<int32_t>(Uniform(0, plan.kv_len - 1, random)));
    }
    const std::vector<int32_t> columns(chosen.begin(), chosen.end());
    plan.columns.insert(plan.columns.end(), columns.begin(), columns.end());
    plan.column_offsets.push_back(static_cast<int64_t>(plan.columns.size()));
    for (int64_t tile = 0; tile < plan.num_q_tiles(); ++tile) {
      const int64_t s = plan.first_tile_begin() + tile * plan.tile_rows;
      const int64_t e = s + plan.tile_rows;
      if (!Chance(options.empty_cells, random)) {
        const auto ranges =
            RandomRanges(plan, s, e, options.range_density, random);
        const auto intervals =
            RandomIntervals(columns, plan, s, ranges, random);
        plan.ranges.insert(plan.ranges.end(), ranges.begin(), ranges.end());
        plan.intervals.insert(plan.intervals.end(), intervals.begin(),
                              intervals.end());
        const auto means = RandomMeans(columns, plan, s, ranges, intervals,
                                       options.means, random);
        plan.mean_blocks.insert(plan.mean_blocks.end(), means.begin(),
                                means.end());
      }
      plan.range_offsets.push_back(static_cast<int64_t>(plan.ranges.size()));
      plan.interval_offsets.push_back(
          static_cast<int64_t>(plan.intervals.size()));
      if (options.means > 0) {
        plan.mean_offsets.push_back(
            static_cast<int64_t>(plan.mean_blocks.size()));
      }
    }
  }
  return plan;
}

SplitPlans Split(const TilePlan& whole, std::mt19937& random) {
  SplitPlans halves{.first = whole, .second = whole};
  Deal(whole, &TilePlan::range_offsets, &TilePlan::ranges, halves, random);
  Deal(whole, &TilePlan::interval_offsets, &TilePlan::intervals, halves,
       random);
  Deal(whole, &TilePlan::mean_offsets, &TilePlan::mean_blocks, halves, random);
  return halves;
}

}  // namespace overture::testing
