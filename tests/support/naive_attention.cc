#include "tests/support/naive_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace overture::testing {
namespace {

using kernels::SparseAttentionParams;
using kernels::TilePlan;

double At(const SparseAttentionParams& params, const void* tensor,
          int64_t index) {
  if (params.dtype == DType::kF32) {
    return static_cast<const float*>(tensor)[index];
  }
  return static_cast<float>(static_cast<const BFloat16*>(tensor)[index]);
}

}  // namespace

std::vector<bool> VisibleKeys(const TilePlan& plan, int64_t list, int64_t row) {
  std::vector<bool> visible(plan.kv_len);
  const int64_t tile = (row - plan.first_tile_begin()) / plan.tile_rows;
  const int64_t cell = list * plan.num_q_tiles() + tile;
  for (int64_t i = plan.range_offsets[cell]; i < plan.range_offsets[cell + 1];
       ++i) {
    const int64_t begin = plan.ranges[i].begin;
    const int64_t end =
        begin + int64_t{plan.ranges[i].num_tiles} * plan.tile_keys;
    for (int64_t k = begin; k < std::min(end, row + 1); ++k) visible[k] = true;
  }
  for (int64_t i = plan.interval_offsets[cell];
       i < plan.interval_offsets[cell + 1]; ++i) {
    for (int32_t c = 0; c < plan.intervals[i].count; ++c) {
      const int64_t column =
          plan.columns[plan.column_offsets[list] + plan.intervals[i].begin + c];
      if (column <= row) visible[column] = true;
    }
  }
  return visible;
}

NaiveAttention ComputeNaiveAttention(const SparseAttentionParams& params) {
  const TilePlan& plan = *params.plan;
  const int64_t dim = params.head_dim;
  const int64_t rows = params.num_q_heads * plan.q_len;
  const int32_t group = params.num_q_heads / params.num_kv_heads;
  NaiveAttention result;
  result.head_dim = params.head_dim;
  result.o.resize(rows * dim);
  result.magnitude.resize(rows * dim);
  result.lse.assign(rows, -std::numeric_limits<double>::infinity());
  result.max_abs.resize(rows);
  std::vector<double> scores(plan.kv_len);
  for (int32_t head = 0; head < params.num_q_heads; ++head) {
    const int64_t kv = (head / group) * params.stride_kv_head;
    const int64_t list = plan.num_lists == 1                    ? 0
                         : plan.num_lists == params.num_q_heads ? head
                                                                : head / group;
    for (int64_t r = 0; r < plan.q_len; ++r) {
      const std::vector<bool> visible =
          VisibleKeys(plan, list, plan.q_begin + r);
      const int64_t row = head * plan.q_len + r;
      double max = -std::numeric_limits<double>::infinity();
      for (int64_t k = 0; k < plan.kv_len; ++k) {
        if (!visible[k]) continue;
        double dot = 0;
        double absolute = 0;
        for (int64_t d = 0; d < dim; ++d) {
          const double product =
              At(params, params.q,
                 r * params.stride_q_row + head * params.stride_q_head + d) *
              At(params, params.k, kv + k * params.stride_kv_row + d);
          dot += product;
          absolute += std::abs(product);
        }
        scores[k] = dot * params.scale;
        max = std::max(max, scores[k]);
        result.max_abs[row] =
            std::max(result.max_abs[row], absolute * params.scale);
      }
      double sum = 0;
      for (int64_t k = 0; k < plan.kv_len; ++k) {
        if (visible[k]) sum += std::exp(scores[k] - max);
      }
      if (sum == 0) continue;  // no key: o = 0, lse = -inf
      result.lse[row] = max + std::log(sum);
      for (int64_t k = 0; k < plan.kv_len; ++k) {
        if (!visible[k]) continue;
        const double weight = std::exp(scores[k] - max) / sum;
        for (int64_t d = 0; d < dim; ++d) {
          const double v =
              At(params, params.v, kv + k * params.stride_kv_row + d);
          result.o[row * dim + d] += weight * v;
          result.magnitude[row * dim + d] += weight * std::abs(v);
        }
      }
    }
  }
  return result;
}

}  // namespace overture::testing
