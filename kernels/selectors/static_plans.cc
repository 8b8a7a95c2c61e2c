#include "kernels/selectors/static_plans.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace overture::kernels {
namespace {

absl::Status BadField(absl::string_view field, int64_t value,
                      absl::string_view limit) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", must be ", limit));
}

TilePlan PlanWithoutColumns(const PlanShape& shape) {
  TilePlan plan;
  plan.tile_rows = shape.tile_rows;
  plan.tile_keys = shape.tile_keys;
  plan.q_begin = shape.q_begin;
  plan.q_len = shape.q_len;
  plan.kv_len = shape.kv_len;
  plan.num_lists = 1;
  plan.range_offsets.reserve(plan.num_cells() + 1);
  plan.range_offsets.push_back(0);
  plan.interval_offsets.assign(plan.num_cells() + 1, 0);
  plan.column_offsets.assign(2, 0);
  return plan;
}

// Tiles of `tile_keys` that cover the keys below `end`.
int64_t TilesUpTo(int64_t end, int64_t tile_keys) {
  return (end + tile_keys - 1) / tile_keys;
}

}  // namespace

absl::Status Validate(const PlanShape& shape) {
  if (shape.tile_rows < 1) {
    return BadField("tile_rows", shape.tile_rows, ">= 1");
  }
  if (shape.tile_keys < 1) {
    return BadField("tile_keys", shape.tile_keys, ">= 1");
  }
  if (shape.q_begin < 0) return BadField("q_begin", shape.q_begin, ">= 0");
  if (shape.q_len < 1) return BadField("q_len", shape.q_len, ">= 1");
  // Tile ends stay int32: neither a key tile nor a query tile may pass 2^31.
  const int64_t max_kv = int64_t{std::numeric_limits<int32_t>::max()} -
                         std::max(shape.tile_keys, shape.tile_rows);
  if (shape.kv_len > max_kv) {
    return BadField("kv_len", shape.kv_len, absl::StrCat("<= ", max_kv));
  }
  // Written so that no sum can overflow.
  if (shape.q_len > shape.kv_len ||
      shape.q_begin > shape.kv_len - shape.q_len) {
    return BadField("kv_len", shape.kv_len, ">= q_begin + q_len");
  }
  return absl::OkStatus();
}

absl::StatusOr<TilePlan> DensePlan(const PlanShape& shape) {
  OVERTURE_RETURN_IF_ERROR(Validate(shape));
  TilePlan plan = PlanWithoutColumns(shape);
  const int64_t q_end = shape.q_begin + shape.q_len;
  int64_t end = plan.first_tile_begin();
  for (int64_t tile = 0; tile < plan.num_q_tiles(); ++tile) {
    end += shape.tile_rows;
    const int64_t tiles = TilesUpTo(std::min(end, q_end), shape.tile_keys);
    plan.ranges.push_back(
        {.begin = 0, .num_tiles = static_cast<int32_t>(tiles)});
    plan.range_offsets.push_back(static_cast<int64_t>(plan.ranges.size()));
  }
  return plan;
}

absl::StatusOr<TilePlan> AShapePlan(const PlanShape& shape, int32_t num_initial,
                                    int32_t num_local, const DenseRows& dense) {
  OVERTURE_RETURN_IF_ERROR(Validate(shape));
  if (num_initial < 0) return BadField("num_initial", num_initial, ">= 0");
  if (num_local < 1) return BadField("num_local", num_local, ">= 1");
  TilePlan plan = PlanWithoutColumns(shape);
  const int64_t tile_keys = shape.tile_keys;
  const int64_t q_end = shape.q_begin + shape.q_len;
  const int64_t sink_tiles = TilesUpTo(num_initial, tile_keys);
  for (int64_t tile = 0; tile < plan.num_q_tiles(); ++tile) {
    // From the tile's first row, real or not: the same keys wherever a prefill
    // resumed.
    const int64_t begin = plan.first_tile_begin() + tile * shape.tile_rows;
    const int64_t end = std::min(begin + shape.tile_rows, q_end);
    const int64_t last = TilesUpTo(end, tile_keys);
    const int64_t first =
        std::max<int64_t>(begin - num_local + 1, 0) / tile_keys;
    const auto add = [&](int64_t from, int64_t to) {
      plan.ranges.push_back({.begin = static_cast<int32_t>(from * tile_keys),
                             .num_tiles = static_cast<int32_t>(to - from)});
    };
    if (sink_tiles >= first || dense.Hold(begin, shape.tile_rows, q_end)) {
      add(0, last);  // the two meet: one range, or keys would count twice
    } else {
      if (sink_tiles > 0) add(0, sink_tiles);
      add(first, last);
    }
    plan.range_offsets.push_back(static_cast<int64_t>(plan.ranges.size()));
  }
  return plan;
}

}  // namespace overture::kernels
