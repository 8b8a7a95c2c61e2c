// Plans of the best key tiles by any score, one list per head, to a given
// density: the two ends that selectors are measured against, tiles drawn at
// random and those of the most exact attention mass. Slow, for evaluation.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/selectors/static_plans.h"
#include "kernels/tile_plan.h"

namespace overture::kernels {

// Fills the scores of the key tiles that start before the end of a query tile's
// last real row, in order. Called from OpenMP threads, once per list and tile.
using TileScores = absl::FunctionRef<void(int32_t list, int64_t q_tile,
                                          absl::Span<float> scores)>;

// Keeps of each query tile's n key tiles the ceil(density * n) best, and at
// least those that hold its rows, which come first; ties go to the smaller
// tile, a NaN ranks last. A query tile of dense rows keeps all.
// INVALID_ARGUMENT as Validate(PlanShape), and unless num_lists >= 1 and 0 <
// density <= 1.
absl::StatusOr<TilePlan> BestTilesPlan(const PlanShape& shape,
                                       int32_t num_lists, float density,
                                       const DenseRows& dense,
                                       TileScores scores);

// The oracle's scores: the attention mass of each key tile, summed over the
// rows of a query tile, from the column sums of a probe of exactly those rows
// (probe_attention/). Holds num_lists * query tiles * key tiles floats.
class TileMasses {
 public:
  // REQUIRES Validate(shape).
  TileMasses(const PlanShape& shape, int32_t num_lists);

  int64_t num_q_tiles() const { return num_q_tiles_; }
  // The real rows of a query tile, absolute.
  struct Rows {
    int64_t begin;
    int64_t end;
  };
  Rows RowsOf(int64_t q_tile) const;
  // `column_sums` begins with [num_lists, RowsOf(q_tile).end].
  void Add(int64_t q_tile, absl::Span<const float> column_sums);
  void Scores(int32_t list, int64_t q_tile, absl::Span<float> scores) const;

 private:
  const PlanShape shape_;
  const int32_t num_lists_;
  const int64_t num_q_tiles_;
  const int64_t num_key_tiles_;
  std::vector<float> masses_;  // [num_q_tiles, num_lists, num_key_tiles]
};

// Tiles drawn by a hash of seed, layer, head and the positions of both tiles:
// equal ones give equal draws, in any prompt. Errors as BestTilesPlan.
absl::StatusOr<TilePlan> RandomTilesPlan(const PlanShape& shape,
                                         int32_t num_heads, float density,
                                         const DenseRows& dense, uint32_t seed,
                                         int32_t layer);

}  // namespace overture::kernels
