// Plans that look at no data: dense and A-shape. One list, shared by all heads
// (A-shape: one call per distinct setting).
// Source of A-shape: MInference `stream_llm`; StreamingLLM arXiv 2309.17453.
#pragma once

#include <cstdint>

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

// Keeps key k for row q when q - k < num_local or k < num_initial; ragged edges
// as a superset, in whole aligned key tiles. INVALID_ARGUMENT if num_initial <
// 0 or num_local < 1.
absl::StatusOr<TilePlan> AShapePlan(const PlanShape& shape, int32_t num_initial,
                                    int32_t num_local);

}  // namespace overture::kernels
