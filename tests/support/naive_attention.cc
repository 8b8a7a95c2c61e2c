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

// A key of a row, or the mean of many.
struct Key {
  const void* k;
  const void* v;
  int64_t offset;  // of its elements in both
  double bias;     // of its score
};

std::vector<Key> KeysOf(const SparseAttentionParams& params, int64_t list,
                        int32_t kv_head, int64_t row) {
  const TilePlan& plan = *params.plan;
  std::vector<Key> keys;
  const std::vector<bool> visible = VisibleKeys(plan, list, row);
  for (int64_t k = 0; k < plan.kv_len; ++k) {
    if (!visible[k]) continue;
    keys.push_back({params.k, params.v,
                    kv_head * params.stride_kv_head + k * params.stride_kv_row,
                    0});
  }
  if (plan.mean_offsets.empty()) return keys;
  const int64_t cell = list * plan.num_q_tiles() +
                       (row - plan.first_tile_begin()) / plan.tile_rows;
  for (int64_t i = plan.mean_offsets[cell]; i < plan.mean_offsets[cell + 1];
       ++i) {
    for (int32_t b = 0; b < plan.mean_blocks[i].count; ++b) {
      keys.push_back(
          {params.k_means, params.v_means,
           kv_head * params.stride_mean_head +
               (plan.mean_blocks[i].begin + b) * params.stride_mean_row,
           std::log(double{kernels::kMeanBlockKeys})});
    }
  }
  return keys;
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
  for (int32_t head = 0; head < params.num_q_heads; ++head) {
    const int64_t list = plan.num_lists == 1                    ? 0
                         : plan.num_lists == params.num_q_heads ? head
                                                                : head / group;
    for (int64_t r = 0; r < plan.q_len; ++r) {
      const std::vector<Key> keys =
          KeysOf(params, list, head / group, plan.q_begin + r);
      const int64_t row = head * plan.q_len + r;
      std::vector<double> scores;
      double max = -std::numeric_limits<double>::infinity();
      for (const Key& key : keys) {
        double dot = 0;
        double absolute = 0;
        for (int64_t d = 0; d < dim; ++d) {
          const double product =
              At(params, params.q,
                 r * params.stride_q_row + head * params.stride_q_head + d) *
              At(params, key.k, key.offset + d);
          dot += product;
          absolute += std::abs(product);
        }
        scores.push_back(dot * params.scale + key.bias);
        max = std::max(max, scores.back());
        result.max_abs[row] =
            std::max(result.max_abs[row], absolute * params.scale + key.bias);
      }
      double sum = 0;
      for (double score : scores) sum += std::exp(score - max);
      if (sum == 0) continue;  // no key: o = 0, lse = -inf
      result.lse[row] = max + std::log(sum);
      for (size_t i = 0; i < keys.size(); ++i) {
        const double weight = std::exp(scores[i] - max) / sum;
        for (int64_t d = 0; d < dim; ++d) {
          const double v = At(params, keys[i].v, keys[i].offset + d);
          result.o[row * dim + d] += weight * v;
          result.magnitude[row * dim + d] += weight * std::abs(v);
        }
      }
    }
  }
  return result;
}

}  // namespace overture::testing
