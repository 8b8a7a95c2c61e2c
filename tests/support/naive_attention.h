// The oracle of every attention: masked softmax in double, pair by pair, from
// the plan's definition in kernels/tile_plan.h and nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sparse_attention/params.h"

namespace overture::testing {

struct NaiveAttention {
  int32_t head_dim = 0;
  std::vector<double> o;  // [num_q_heads, q_len, head_dim]
  // Sum of weight * |v| per output: what rounding errors scale with.
  std::vector<double> magnitude;
  std::vector<double> lse;      // [num_q_heads, q_len]; -inf without keys
  std::vector<double> max_abs;  // [num_q_heads, q_len], largest sum of |q k|
                                // * scale (+ a mean's log of its block's size)
                                // over the row's keys
};

// Which keys a row of a list sees by themselves: [kv_len] flags. The row is an
// absolute position.
std::vector<bool> VisibleKeys(const kernels::TilePlan& plan, int64_t list,
                              int64_t row);

// Reads q, k, v and the means; ignores params.o and params.lse.
NaiveAttention ComputeNaiveAttention(
    const kernels::SparseAttentionParams& params);

}  // namespace overture::testing
