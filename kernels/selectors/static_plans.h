// Plans that look at no data: dense, A-shape and tri-shape. One list, shared by
// all heads (A-shape: one call per distinct setting).
// Source of A-shape: MInference `stream_llm`; StreamingLLM arXiv 2309.17453. Of
// tri-shape: SCBench, arXiv 2412.10319; we count its last rows per segment.
#pragma once

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tile_plan.h"

namespace overture::kernels {

// The query rows, keys and tile shape of a plan to be built.
struct PlanShape {
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int32_t tile_rows = 64;
  int32_t tile_keys = 64;
};

// INVALID_ARGUMENT unless 0 <= q_begin, 1 <= q_len, q_begin + q_len <= kv_len <
// 2^31 - max(tile_rows, tile_keys) and tiles have at least one row and key.
// Every builder calls it.
absl::Status Validate(const PlanShape& shape);

// All tiles at or before the diagonal.
absl::StatusOr<TilePlan> DensePlan(const PlanShape& shape);

// Rows that attend to all keys before them, by their position: those of query
// tiles that end at or before `until`, and of tiles that hold a row at or after
// `from`.
struct DenseRows {
  int64_t until = 0;
  int64_t from = std::numeric_limits<int64_t>::max();

  // Of the tile of `tile_rows` rows from `begin` on, in a plan that ends at
  // `q_end`.
  constexpr bool Hold(int64_t begin, int64_t tile_rows, int64_t q_end) const {
    const int64_t end = begin + tile_rows;
    return end <= until || (end < q_end ? end : q_end) > from;
  }
};

// Keeps key k for row q when q - k < num_local or k < num_initial; ragged edges
// as a superset, in whole aligned key tiles; all keys for dense rows, so that
// the last rows of a segment make it a tri-shape. INVALID_ARGUMENT if
// num_initial < 0 or num_local < 1.
absl::StatusOr<TilePlan> AShapePlan(const PlanShape& shape, int32_t num_initial,
                                    int32_t num_local,
                                    const DenseRows& dense = {});

}  // namespace overture::kernels
