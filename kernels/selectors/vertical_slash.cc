#include "kernels/selectors/vertical_slash.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "kernels/selectors/ordered_bits.h"

namespace overture::kernels {
namespace {

constexpr int32_t kMinVertical = 30;
constexpr int32_t kMinSlash = 50;
constexpr int32_t kExactTile = 64;  // the released kernel's only tile shape

// The fewest of `ranked` (complement of the index below, best first) whose
// weights, with those of the first `num_forced` scores, reach `mass` of all.
int32_t CountOfMass(absl::Span<const float> scores,
                    absl::Span<const uint64_t> ranked, int32_t num_forced,
                    float mass) {
  uint64_t total = 0;
  for (const float score : scores) total += ProbeWeight(score);
  const uint64_t wanted = WeightOfMass(mass, total);
  uint64_t weight = 0;
  for (int32_t i = 0; i < num_forced; ++i) weight += ProbeWeight(scores[i]);
  size_t count = 0;
  while (weight < wanted && count < ranked.size()) {
    weight += ProbeWeight(scores[~static_cast<uint32_t>(ranked[count++])]);
  }
  return static_cast<int32_t>(count);
}

// The `count` indices of the largest scores, the first `num_forced` before all
// others, ties to the smaller index; ascending. With a mass no more of them
// than reach it.
std::vector<int32_t> Top(absl::Span<const float> scores, int32_t count,
                         int32_t num_forced, float mass) {
  const int32_t n = static_cast<int32_t>(scores.size());
  count = std::min(count, n);
  num_forced = std::min(num_forced, count);
  std::vector<int32_t> top(num_forced);
  std::iota(top.begin(), top.end(), 0);
  int32_t num_ranked = count - num_forced;
  if (num_ranked == 0) return top;
  // Score above, complement of the index below.
  std::vector<uint64_t> keys;
  keys.reserve(n - num_forced);
  for (int32_t i = num_forced; i < n; ++i) {
    keys.push_back(uint64_t{OrderedBits(std::bit_cast<uint32_t>(scores[i]))}
                       << 32 |
                   (~static_cast<uint32_t>(i)));
  }
  std::nth_element(keys.begin(), keys.begin() + (num_ranked - 1), keys.end(),
                   std::greater<uint64_t>());
  keys.resize(num_ranked);
  if (mass > 0) {
    std::sort(keys.begin(), keys.end(), std::greater<uint64_t>());
    num_ranked = CountOfMass(scores, keys, num_forced, mass);
    keys.resize(num_ranked);
  }
  for (const uint64_t key : keys) {
    top.push_back(static_cast<int32_t>(~static_cast<uint32_t>(key)));
  }
  std::sort(top.begin() + num_forced, top.end());
  return top;
}

absl::Status CheckAscending(absl::string_view name, size_t list,
                            const std::vector<int32_t>& values,
                            int64_t kv_len) {
  int64_t last = -1;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] <= last || values[i] >= kv_len) {
      return absl::InvalidArgumentError(absl::StrCat(
          "indices[", list, "].", name, "[", i, "] is ", values[i], " after ",
          last, ", must ascend within [0, kv_len = ", kv_len, ")"));
    }
    last = values[i];
  }
  return absl::OkStatus();
}

absl::Status CheckIndex(const VerticalSlashIndex& index, size_t list,
                        int64_t kv_len) {
  OVERTURE_RETURN_IF_ERROR(
      CheckAscending("verticals", list, index.verticals, kv_len));
  OVERTURE_RETURN_IF_ERROR(
      CheckAscending("slashes", list, index.slashes, kv_len));
  if (index.slashes.empty() || index.slashes[0] != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("indices[", list,
                     "].slashes lacks distance 0: a row must "
                     "see its own key"));
  }
  return absl::OkStatus();
}

struct Span64 {
  int64_t begin = 0;
  int64_t end = 0;
};

// The released code's walk for one query tile [e - rows, e): slashes by
// descending distance, so ranges come out left to right. A distance gives
// [h - rows, h); one that reaches at most `rows` past the open range extends it
// by exactly `rows`, so every length is a multiple of `rows`.
void WalkSlashes(const std::vector<int32_t>& slashes, int64_t e, int64_t rows,
                 std::vector<Span64>* out) {
  out->clear();
  // Distances >= e see nothing yet. Distance 0 is always left.
  auto next = std::lower_bound(slashes.begin(), slashes.end(), e);
  const auto range_end = [&](int64_t distance) {
    return std::max(e - distance, rows);
  };
  --next;
  Span64 open;
  open.end = range_end(*next);
  open.begin = open.end - rows;
  while (next != slashes.begin()) {
    --next;
    const int64_t h = range_end(*next);
    if (h > open.end + rows) {
      out->push_back(open);
      open = {h - rows, h};
    } else if (h > open.end) {
      open.end += rows;
    }
  }
  out->push_back(open);
}

// The aligned key tiles that hold a key of [s - D, e - D) for a distance D of
// `slashes`, without those that start at or after `limit`: they are no row's.
void AlignedTiles(const std::vector<int32_t>& slashes, int64_t e,
                  const TilePlan& plan, int64_t limit,
                  std::vector<Span64>* out) {
  out->clear();
  const int64_t tile_keys = plan.tile_keys;
  limit = (limit + tile_keys - 1) / tile_keys * tile_keys;
  // From the largest distance that sees a key down, so that spans ascend.
  auto next = std::lower_bound(slashes.begin(), slashes.end(), e);
  while (next != slashes.begin()) {
    --next;
    const int64_t end = e - *next;  // of the keys, > 0
    const int64_t begin = std::max<int64_t>(end - plan.tile_rows, 0);
    const Span64 span = {
        begin / tile_keys * tile_keys,
        std::min((end + tile_keys - 1) / tile_keys * tile_keys, limit)};
    if (span.begin >= span.end) continue;
    if (!out->empty() && span.begin <= out->back().end) {
      out->back().end = span.end;
    } else {
      out->push_back(span);
    }
  }
}

// The columns left of a range and in no earlier one, as index intervals. Those
// right of the last range are in the future: the last range reaches e.
void ColumnsBetween(const std::vector<int32_t>& columns,
                    const std::vector<Span64>& spans,
                    std::vector<ColumnInterval>* out) {
  auto next = columns.begin();
  for (const Span64& span : spans) {
    const auto gap_end = std::lower_bound(next, columns.end(), span.begin);
    if (gap_end != next) {
      out->push_back({.begin = static_cast<int32_t>(next - columns.begin()),
                      .count = static_cast<int32_t>(gap_end - next)});
    }
    next = std::lower_bound(gap_end, columns.end(), span.end);
  }
}

// One list's part of the plan; the counts are per query tile.
struct ListPart {
  std::vector<KeyRange> ranges;
  std::vector<int32_t> num_ranges;
  std::vector<ColumnInterval> intervals;
  std::vector<int32_t> num_intervals;
};

ListPart BuildList(const TilePlan& plan, const VerticalSlashIndex& index,
                   RangeForm form) {
  ListPart part;
  const int64_t num_tiles = plan.num_q_tiles();
  part.num_ranges.reserve(num_tiles);
  part.num_intervals.reserve(num_tiles);
  std::vector<Span64> spans;
  int64_t e = plan.first_tile_begin();
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    e += plan.tile_rows;
    if (form == RangeForm::kExact) {
      WalkSlashes(index.slashes, e, plan.tile_rows, &spans);
    } else {
      AlignedTiles(index.slashes, e, plan,
                   std::min(e, plan.q_begin + plan.q_len), &spans);
    }
    for (const Span64& span : spans) {
      const int64_t tiles = (span.end - span.begin) / plan.tile_keys;
      part.ranges.push_back({.begin = static_cast<int32_t>(span.begin),
                             .num_tiles = static_cast<int32_t>(tiles)});
    }
    part.num_ranges.push_back(static_cast<int32_t>(spans.size()));
    const size_t before = part.intervals.size();
    ColumnsBetween(index.verticals, spans, &part.intervals);
    part.num_intervals.push_back(
        static_cast<int32_t>(part.intervals.size() - before));
  }
  return part;
}

void AppendOffsets(const std::vector<int32_t>& counts,
                   std::vector<int64_t>* offsets) {
  for (const int32_t count : counts)
    offsets->push_back(offsets->back() + count);
}

}  // namespace

VerticalSlashSize StaticSize(int32_t num_initial, int32_t num_local) {
  return {.vertical = num_initial,
          .slash = num_local,
          .forced_columns = num_initial,
          .forced_distances = num_local};
}

absl::Status Validate(const VerticalSlashSize& size) {
  struct Count {
    absl::string_view name;
    int32_t value;
    int32_t least;
  };
  for (const Count& count :
       {Count{"vertical", size.vertical, 0}, Count{"slash", size.slash, 0},
        Count{"forced_columns", size.forced_columns, 0},
        Count{"forced_distances", size.forced_distances, 1}}) {
    if (count.value >= count.least) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        count.name, " is ", count.value, ", must be at least ", count.least));
  }
  if (!(size.mass >= 0 && size.mass <= 1)) {  // or a NaN
    return absl::InvalidArgumentError(
        absl::StrCat("mass is ", size.mass, ", must be within [0, 1]"));
  }
  return WithContext(Validate(size.blocks), "blocks");
}

bool IsStatic(const VerticalSlashSize& size) {
  return size.vertical == size.forced_columns &&
         size.slash == size.forced_distances;
}

VerticalSlashSize Clamp(const VerticalSlashSize& size, int64_t kv_len) {
  const auto clamp = [&](int32_t value, int32_t least) {
    if (!IsStatic(size)) value = std::max(value, least);
    return static_cast<int32_t>(std::min<int64_t>(kv_len, value));
  };
  VerticalSlashSize clamped = size;
  clamped.vertical = clamp(size.vertical, kMinVertical);
  clamped.slash = clamp(size.slash, kMinSlash);
  return clamped;
}

VerticalSlashIndex SelectVerticalSlash(absl::Span<const float> column_sums,
                                       absl::Span<const float> diagonal_sums,
                                       const VerticalSlashSize& size) {
  const VerticalSlashSize clamped =
      Clamp(size, static_cast<int64_t>(column_sums.size()));
  return {.verticals = Top(column_sums, clamped.vertical,
                           clamped.forced_columns, size.mass),
          .slashes = Top(diagonal_sums, clamped.slash, clamped.forced_distances,
                         size.mass)};
}

absl::StatusOr<TilePlan> BuildVerticalSlashPlan(
    const PlanShape& shape, absl::Span<const VerticalSlashIndex> indices,
    RangeForm form) {
  OVERTURE_RETURN_IF_ERROR(Validate(shape));
  if (indices.empty()) {
    return absl::InvalidArgumentError("indices is empty, must have >= 1 list");
  }
  if (form == RangeForm::kExact &&
      (shape.tile_rows != kExactTile || shape.tile_keys != kExactTile)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tile is ", shape.tile_rows, "x", shape.tile_keys,
                     ", must be 64x64 in the exact form"));
  }
  for (size_t list = 0; list < indices.size(); ++list) {
    OVERTURE_RETURN_IF_ERROR(CheckIndex(indices[list], list, shape.kv_len));
  }

  TilePlan plan;
  plan.tile_rows = shape.tile_rows;
  plan.tile_keys = shape.tile_keys;
  plan.q_begin = shape.q_begin;
  plan.q_len = shape.q_len;
  plan.kv_len = shape.kv_len;
  plan.num_lists = static_cast<int32_t>(indices.size());

  std::vector<ListPart> parts(indices.size());
#pragma omp parallel for schedule(dynamic)
  for (size_t list = 0; list < indices.size(); ++list) {
    parts[list] = BuildList(plan, indices[list], form);
  }

  size_t num_ranges = 0, num_intervals = 0, num_columns = 0;
  for (size_t list = 0; list < indices.size(); ++list) {
    num_ranges += parts[list].ranges.size();
    num_intervals += parts[list].intervals.size();
    num_columns += indices[list].verticals.size();
  }
  plan.range_offsets.reserve(plan.num_cells() + 1);
  plan.range_offsets.push_back(0);
  plan.ranges.reserve(num_ranges);
  plan.interval_offsets.reserve(plan.num_cells() + 1);
  plan.interval_offsets.push_back(0);
  plan.intervals.reserve(num_intervals);
  plan.column_offsets.push_back(0);
  plan.columns.reserve(num_columns);
  for (size_t list = 0; list < indices.size(); ++list) {
    // Moved out, so that a part is freed as soon as it has been copied.
    const ListPart part = std::move(parts[list]);
    AppendOffsets(part.num_ranges, &plan.range_offsets);
    plan.ranges.insert(plan.ranges.end(), part.ranges.begin(),
                       part.ranges.end());
    AppendOffsets(part.num_intervals, &plan.interval_offsets);
    plan.intervals.insert(plan.intervals.end(), part.intervals.begin(),
                          part.intervals.end());
    const std::vector<int32_t>& columns = indices[list].verticals;
    plan.columns.insert(plan.columns.end(), columns.begin(), columns.end());
    plan.column_offsets.push_back(static_cast<int64_t>(plan.columns.size()));
  }
  return plan;
}

}  // namespace overture::kernels
