// Vertical-slash selection: the columns and the distances (diagonals) that the
// last rows of a segment attend to most, for every row of it.
//
// Two steps, both plain data on the host: Select* ranks columns and distances
// from probe sums, Build* turns them into a tile plan.
// Source: MInference, arXiv 2407.02490, section 3.2 and its released code; we
// differ in breaking ties towards the smaller index (their top-k may lose
// distance 0 then).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/selectors/block_scores.h"
#include "kernels/selectors/static_plans.h"
#include "kernels/tile_plan.h"

namespace overture::kernels {

// How much one head keeps: columns and distances, and beside them blocks. The
// forced columns [0, forced_columns) and distances [0, forced_distances) come
// before all others, whatever the probe says.
struct VerticalSlashSize {
  int32_t vertical = 1000;         // columns to keep, forced ones included
  int32_t slash = 6096;            // distances to keep, forced ones included
  int32_t forced_columns = 30;     // attention sinks
  int32_t forced_distances = 100;  // local band
  // Adaptive if > 0: of each kind the fewest, in the order in which they would
  // be kept, whose probe sums reach this share of the sums of all; vertical and
  // slash are then what is kept at most, the forced ones what is kept at least.
  // Larger keeps more; from 1 on everything that weighs anything. Source:
  // FlexPrefill, arXiv 2502.20766, section 3.2 (its gamma), without its blocks.
  float mass = 0;
  // Blocks that a query tile keeps beside columns and distances, by the scores
  // of their pooled keys (hybrid.h); off by default.
  BlockRule blocks;
  friend bool operator==(const VerticalSlashSize&,
                         const VerticalSlashSize&) = default;
};

// The size of a head that looks at no probe: sinks and a sliding window, an
// A-shape. Nothing but forced columns and distances.
VerticalSlashSize StaticSize(int32_t num_initial, int32_t num_local);
bool IsStatic(const VerticalSlashSize& size);  // columns and distances alone

// INVALID_ARGUMENT naming field, value and limit unless counts are at least 0,
// a distance is forced (distance 0, or a row would not see its own key), mass
// lies within [0, 1] and blocks are valid.
absl::Status Validate(const VerticalSlashSize& size);

// Number of probe rows: min(64, segment length).
inline constexpr int32_t kProbeRows = 64;

// Raised to at least 30 and 50, as the released code does, unless IsStatic;
// lowered to at most kv_len.
VerticalSlashSize Clamp(const VerticalSlashSize& size, int64_t kv_len);

struct VerticalSlashIndex {
  std::vector<int32_t> verticals;  // ascending columns
  std::vector<int32_t> slashes;    // ascending distances; 0 is always there
};

// `column_sums` and `diagonal_sums` are one head's, [kv_len], from
// ProbeAttention. Clamps `size` itself. The forced columns and distances come
// before all others, as far as the size goes; ties go to the smaller index; NaN
// ranks last. A mass counts sums in whole units of 2^-26 (ProbeWeight), so that
// it has the same meaning in every order of additions. REQUIRES equal, non-zero
// lengths below 2^31, no negative forced count and a forced distance.
VerticalSlashIndex SelectVerticalSlash(absl::Span<const float> column_sums,
                                       absl::Span<const float> diagonal_sums,
                                       const VerticalSlashSize& size);

enum class RangeForm {
  // Range starts as they fall: the released code's tiles, tile for tile (64 x
  // 64 only). For conformance. The last range may run past the query tile and
  // past kv_len.
  kExact,
  // Those aligned tiles of tile_keys keys that hold a key of a kept distance
  // for a row of the query tile, none that starts after the last row: for any
  // tile shape, what paged caches and bulk copies want, and, seen from the end
  // of a query tile, the same tiles for every query tile.
  kAligned,
};

// One list per entry of `indices` (a query head each, or a KV head each).
// INVALID_ARGUMENT names the list and entry that does not ascend within
// [0, kv_len), a list without distance 0, or a tile shape that the form lacks.
// O(columns + slashes) per query tile; lists spread over OpenMP threads.
absl::StatusOr<TilePlan> BuildVerticalSlashPlan(
    const PlanShape& shape, absl::Span<const VerticalSlashIndex> indices,
    RangeForm form);

}  // namespace overture::kernels
