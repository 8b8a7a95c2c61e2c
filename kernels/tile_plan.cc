#include "kernels/tile_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "kernels/causal_pairs.h"

namespace overture::kernels {
namespace {

template <typename T>
int64_t Bytes(const std::vector<T>& v) {
  return static_cast<int64_t>(v.size() * sizeof(T));
}

int64_t Begin(const KeyRange& range) { return range.begin; }

int64_t End(const TilePlan& plan, const KeyRange& range) {
  return range.begin + int64_t{range.num_tiles} * plan.tile_keys;
}

// The query tile of one cell, in absolute positions.
struct QueryTile {
  int64_t list = 0;
  int64_t tile = 0;
  int64_t begin = 0;      // s
  int64_t end = 0;        // e
  int64_t row_begin = 0;  // real rows only
  int64_t row_end = 0;
};

QueryTile TileOf(const TilePlan& plan, int64_t list, int64_t tile) {
  QueryTile t;
  t.list = list;
  t.tile = tile;
  t.begin = plan.first_tile_begin() + tile * plan.tile_rows;
  t.end = t.begin + plan.tile_rows;
  t.row_begin = std::max(t.begin, plan.q_begin);
  t.row_end = std::min(t.end, plan.q_begin + plan.q_len);
  return t;
}

absl::Status Broken(const QueryTile& t, absl::string_view what) {
  return absl::InternalError(
      absl::StrCat("tile plan: list ", t.list, " tile ", t.tile, ": ", what));
}

absl::Status BadField(absl::string_view field, int64_t value,
                      absl::string_view limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("tile plan: ", field, " is ", value, ", must be ", limit));
}

// `offsets` has `cells` + 1 ascending entries from 0 to `total`.
absl::Status CheckOffsets(absl::string_view name,
                          const std::vector<int64_t>& offsets, int64_t cells,
                          size_t total) {
  if (offsets.size() != static_cast<size_t>(cells) + 1) {
    return BadField(absl::StrCat(name, ".size()"),
                    static_cast<int64_t>(offsets.size()),
                    absl::StrCat(cells + 1));
  }
  if (offsets.front() != 0) {
    return BadField(absl::StrCat(name, "[0]"), offsets.front(), "0");
  }
  if (!std::is_sorted(offsets.begin(), offsets.end())) {
    return absl::InvalidArgumentError(
        absl::StrCat("tile plan: ", name, " is not ascending"));
  }
  if (offsets.back() != static_cast<int64_t>(total)) {
    return BadField(absl::StrCat(name, ".back()"), offsets.back(),
                    absl::StrCat(total, ", the entries it indexes"));
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const TilePlan& plan) {
  if (plan.tile_rows < 1) return BadField("tile_rows", plan.tile_rows, ">= 1");
  if (plan.tile_keys < 1) return BadField("tile_keys", plan.tile_keys, ">= 1");
  if (plan.num_lists < 1) return BadField("num_lists", plan.num_lists, ">= 1");
  if (plan.q_begin < 0) return BadField("q_begin", plan.q_begin, ">= 0");
  if (plan.q_len < 1) return BadField("q_len", plan.q_len, ">= 1");
  const int64_t max_kv =
      int64_t{std::numeric_limits<int32_t>::max()} - plan.tile_keys;
  if (plan.kv_len > max_kv) {
    return BadField("kv_len", plan.kv_len, absl::StrCat("<= ", max_kv));
  }
  // Written so that no sum can overflow.
  if (plan.q_len > plan.kv_len || plan.q_begin > plan.kv_len - plan.q_len) {
    return BadField("kv_len", plan.kv_len, ">= q_begin + q_len");
  }
  const int64_t cells = plan.num_cells();
  OVERTURE_RETURN_IF_ERROR(CheckOffsets("range_offsets", plan.range_offsets,
                                        cells, plan.ranges.size()));
  OVERTURE_RETURN_IF_ERROR(CheckOffsets(
      "interval_offsets", plan.interval_offsets, cells, plan.intervals.size()));
  if (!plan.mean_offsets.empty() || !plan.mean_blocks.empty()) {
    OVERTURE_RETURN_IF_ERROR(CheckOffsets("mean_offsets", plan.mean_offsets,
                                          cells, plan.mean_blocks.size()));
  }
  return CheckOffsets("column_offsets", plan.column_offsets, plan.num_lists,
                      plan.columns.size());
}

absl::Status CheckColumnList(const TilePlan& plan, int64_t list) {
  int64_t last = -1;
  for (int64_t i = plan.column_offsets[list]; i < plan.column_offsets[list + 1];
       ++i) {
    const int64_t column = plan.columns[i];
    if (column <= last || column >= plan.kv_len) {
      return absl::InternalError(absl::StrCat(
          "tile plan: list ", list, ": column ", column, " after ", last,
          " breaks I6: ascending within [0, ", plan.kv_len, ")"));
    }
    last = column;
  }
  return absl::OkStatus();
}

// I3, I5 and the ranges' share of I2 and I6.
absl::Status CheckRanges(const TilePlan& plan, const QueryTile& t,
                         const KeyRange* begin, const KeyRange* end) {
  int64_t last_end = 0;
  int64_t own_keys_end = t.row_begin;  // own keys covered so far: below it
  for (const KeyRange* r = begin; r != end; ++r) {
    if (r->num_tiles < 1) {
      return Broken(t, absl::StrCat("range at ", r->begin, " has ",
                                    r->num_tiles, " tiles, must be >= 1"));
    }
    if (r->begin < last_end) {
      return Broken(t, absl::StrCat("range at ", r->begin, " breaks I2 and I6",
                                    ": starts before ", last_end));
    }
    last_end = End(plan, *r);
    if (last_end - plan.tile_keys >= t.end) {
      return Broken(
          t, absl::StrCat("range at ", r->begin, " breaks I5: tile ",
                          last_end - plan.tile_keys, " is not < ", t.end));
    }
    if (r->begin <= own_keys_end)
      own_keys_end = std::max(own_keys_end, last_end);
  }
  if (own_keys_end < t.row_end) {
    return Broken(t, absl::StrCat("row ", own_keys_end,
                                  " breaks I3: does not see its own key"));
  }
  return absl::OkStatus();
}

// I4 and the columns' share of I2 and I6.
absl::Status CheckIntervals(const TilePlan& plan, const QueryTile& t,
                            const KeyRange* range, const KeyRange* range_end) {
  const int32_t* columns = plan.columns.data() + plan.column_offsets[t.list];
  const int64_t num_columns =
      plan.column_offsets[t.list + 1] - plan.column_offsets[t.list];
  const int64_t cell = t.list * plan.num_q_tiles() + t.tile;
  int64_t last_end = 0;
  for (int64_t i = plan.interval_offsets[cell];
       i < plan.interval_offsets[cell + 1]; ++i) {
    const int64_t begin = plan.intervals[i].begin;
    const int64_t count = plan.intervals[i].count;
    if (begin < 0 || count < 1 || begin + count > num_columns) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tile plan: list ", t.list, " tile ", t.tile, ": interval [", begin,
          ", ", begin + count, ") is empty or outside the list's ", num_columns,
          " columns"));
    }
    if (begin < last_end) {
      return Broken(t, absl::StrCat("interval at ", begin, " breaks I6: starts",
                                    " before ", last_end));
    }
    last_end = begin + count;
    const int32_t* first = columns + begin;
    const int32_t* last = first + count;
    if (last[-1] >= t.begin) {
      return Broken(
          t, absl::StrCat("column ", last[-1], " breaks I4: not < ", t.begin));
    }
    // Both lists ascend, so each range is looked at once, and once more when
    // it spans the gap between two intervals.
    while (range != range_end && End(plan, *range) <= *first) ++range;
    for (const KeyRange* r = range; r != range_end && r->begin <= last[-1];
         ++r) {
      const int32_t* hit = std::lower_bound(first, last, r->begin);
      if (hit != last && *hit < End(plan, *r)) {
        return Broken(t, absl::StrCat("column ", *hit, " breaks I2: inside the",
                                      " range at ", Begin(*r)));
      }
    }
  }
  return absl::OkStatus();
}

// The first key of the cell's ranges and columns that lies in [begin, end), or
// -1.
int64_t KeptKeyWithin(const TilePlan& plan, const QueryTile& t, int64_t begin,
                      int64_t end) {
  const int64_t cell = t.list * plan.num_q_tiles() + t.tile;
  const auto ranges_end = plan.ranges.begin() + plan.range_offsets[cell + 1];
  const auto range = std::partition_point(
      plan.ranges.begin() + plan.range_offsets[cell], ranges_end,
      [&](const KeyRange& r) { return End(plan, r) <= begin; });
  if (range != ranges_end && range->begin < end) {
    return std::max<int64_t>(range->begin, begin);
  }
  const int32_t* columns = plan.columns.data() + plan.column_offsets[t.list];
  const auto intervals_end =
      plan.intervals.begin() + plan.interval_offsets[cell + 1];
  const auto interval =
      std::partition_point(plan.intervals.begin() + plan.interval_offsets[cell],
                           intervals_end, [&](const ColumnInterval& i) {
                             return columns[i.begin + i.count - 1] < begin;
                           });
  if (interval == intervals_end) return -1;
  const int32_t* first = columns + interval->begin;
  const int64_t column =
      *std::lower_bound(first, first + interval->count, begin);
  return column < end ? column : -1;
}

// The corrected blocks' share of I2, I4 and I6. REQUIRES valid ranges and
// intervals.
absl::Status CheckMeans(const TilePlan& plan, const QueryTile& t) {
  if (plan.mean_offsets.empty()) return absl::OkStatus();
  const int64_t cell = t.list * plan.num_q_tiles() + t.tile;
  int64_t last_end = 0;
  for (int64_t i = plan.mean_offsets[cell]; i < plan.mean_offsets[cell + 1];
       ++i) {
    const BlockInterval& blocks = plan.mean_blocks[i];
    if (blocks.count < 1 || blocks.begin < last_end) {
      return Broken(
          t, absl::StrCat(blocks.count, " corrected blocks at ", blocks.begin,
                          " break I6: at least 1, from ", last_end, " on"));
    }
    last_end = int64_t{blocks.begin} + blocks.count;
    if (last_end * kMeanBlockKeys > t.begin) {
      return Broken(t, absl::StrCat("corrected block ", last_end - 1,
                                    " breaks I4: does not end by ", t.begin));
    }
    const int64_t key =
        KeptKeyWithin(plan, t, int64_t{blocks.begin} * kMeanBlockKeys,
                      last_end * kMeanBlockKeys);
    if (key >= 0) {
      return Broken(t, absl::StrCat("key ", key, " breaks I2: its block ",
                                    key / kMeanBlockKeys, " is corrected"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t TilePlan::SizeBytes() const {
  return Bytes(range_offsets) + Bytes(ranges) + Bytes(interval_offsets) +
         Bytes(intervals) + Bytes(column_offsets) + Bytes(columns) +
         Bytes(mean_offsets) + Bytes(mean_blocks);
}

absl::Status Validate(const TilePlan& plan) {
  OVERTURE_RETURN_IF_ERROR(CheckSizes(plan));
  const int64_t num_tiles = plan.num_q_tiles();
  for (int64_t list = 0; list < plan.num_lists; ++list) {
    OVERTURE_RETURN_IF_ERROR(CheckColumnList(plan, list));
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      const QueryTile t = TileOf(plan, list, tile);
      const int64_t cell = list * num_tiles + tile;
      const KeyRange* begin = plan.ranges.data() + plan.range_offsets[cell];
      const KeyRange* end = plan.ranges.data() + plan.range_offsets[cell + 1];
      OVERTURE_RETURN_IF_ERROR(CheckRanges(plan, t, begin, end));
      OVERTURE_RETURN_IF_ERROR(CheckIntervals(plan, t, begin, end));
      OVERTURE_RETURN_IF_ERROR(CheckMeans(plan, t));
    }
  }
  return absl::OkStatus();
}

PlanCost Cost(const TilePlan& plan) {
  PlanCost cost;
  int64_t pairs = 0;
  const int64_t num_tiles = plan.num_q_tiles();
  for (int64_t cell = 0; cell < plan.num_cells(); ++cell) {
    const QueryTile t = TileOf(plan, cell / num_tiles, cell % num_tiles);
    for (int64_t i = plan.range_offsets[cell]; i < plan.range_offsets[cell + 1];
         ++i) {
      const KeyRange& range = plan.ranges[i];
      cost.key_tiles += range.num_tiles;
      pairs += CausalPairs(t.row_begin, t.row_end, range.begin,
                           std::min(End(plan, range), plan.kv_len));
    }
    for (int64_t i = plan.interval_offsets[cell];
         i < plan.interval_offsets[cell + 1]; ++i) {
      cost.columns += plan.intervals[i].count;
      pairs += (t.row_end - t.row_begin) * plan.intervals[i].count;
    }
    if (plan.mean_offsets.empty()) continue;
    for (int64_t i = plan.mean_offsets[cell]; i < plan.mean_offsets[cell + 1];
         ++i) {
      cost.means += plan.mean_blocks[i].count;
      pairs += (t.row_end - t.row_begin) * plan.mean_blocks[i].count;
    }
  }
  const int64_t causal =
      plan.num_lists *
      CausalPairs(plan.q_begin, plan.q_begin + plan.q_len, 0, plan.kv_len);
  if (causal > 0) {
    cost.density = static_cast<double>(pairs) / static_cast<double>(causal);
  }
  return cost;
}

}  // namespace overture::kernels
