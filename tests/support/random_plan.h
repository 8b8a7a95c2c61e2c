// Random tile plans for attention tests: unaligned ranges, single columns
// stored once per list, ragged tails, empty cells.
#pragma once

#include <cstdint>
#include <random>

#include "kernels/tile_plan.h"

namespace overture::testing {

struct RandomPlanOptions {
  int64_t q_begin = 0;
  int64_t q_len = 1;
  int64_t kv_len = 1;
  int32_t tile_rows = 64;
  int32_t tile_keys = 64;
  int32_t num_lists = 1;
  // Fraction of the keys before a query tile that its ranges cover, about.
  double range_density = 0.3;
  // Columns per list, about.
  int32_t num_columns = 40;
  // Chance that a block which a cell could correct is corrected.
  double means = 0;
  // Chance that a cell has no range and no column at all. With 0 every row
  // sees its own key, and the plan passes Validate.
  double empty_cells = 0;
};

kernels::TilePlan RandomPlan(const RandomPlanOptions& options,
                             std::mt19937& random);

// Two plans whose cells partition the cells' ranges, columns and corrected
// blocks of `whole`.
struct SplitPlans {
  kernels::TilePlan first;
  kernels::TilePlan second;
};
SplitPlans Split(const kernels::TilePlan& whole, std::mt19937& random);

}  // namespace overture::testing
