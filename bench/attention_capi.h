// What the C functions that bench/attention_gpu.py calls share: shapes and
// plans as ctypes lays them out. Tensors are [heads, rows, head_dim],
// contiguous bf16 on the device.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "kernels/sparse_attention/device_plan.h"
#include "kernels/sparse_attention/params.h"

extern "C" {

struct OvertureAttentionShape {
  int64_t q_begin;
  int64_t q_len;
  int64_t kv_len;
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t num_lists;
  int32_t tile_rows;  // 128, or less where query heads are packed
  int32_t sm80;       // 1: the sm_80 kernel, whatever the device
};

// Arrays as in kernels/sparse_attention/device_plan.h.
struct OvertureAttentionPlan {
  const overture::kernels::PlanCell* cells;
  const overture::kernels::KeyRange* ranges;
  const int32_t* columns;
  const int64_t* mean_offsets;  // this and the next three null without means
  const overture::kernels::BlockInterval* mean_blocks;
  const void* k_means;  // [heads, kv_len / 128, head_dim]
  const void* v_means;
  const int32_t* order;
  int32_t* next_item;
};

}  // extern "C"

// 0, or 1 with the reason on standard error.
inline int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

inline overture::kernels::SparseAttentionParams AttentionParams(
    const OvertureAttentionShape& shape, const void* q, const void* k,
    const void* v, void* o, float* lse) {
  const int64_t dim = shape.head_dim;
  return {.q = q,
          .k = k,
          .v = v,
          .o = o,
          .lse = lse,
          .stride_q_row = dim,
          .stride_q_head = shape.q_len * dim,
          .stride_kv_row = dim,
          .stride_kv_head = shape.kv_len * dim,
          .stride_o_row = dim,
          .stride_o_head = shape.q_len * dim,
          .num_q_heads = shape.num_q_heads,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(dim))};
}

inline overture::kernels::DeviceTilePlan DevicePlan(
    const OvertureAttentionShape& shape, const OvertureAttentionPlan& plan) {
  const int64_t rows = shape.tile_rows;
  const int64_t first = shape.q_begin / rows * rows;
  const int64_t end = shape.q_begin + shape.q_len;
  return {.q_begin = shape.q_begin,
          .q_len = shape.q_len,
          .kv_len = shape.kv_len,
          .num_lists = shape.num_lists,
          .num_q_tiles = static_cast<int32_t>((end - first + rows - 1) / rows),
          .tile_rows = shape.tile_rows,
          .cells = plan.cells,
          .ranges = plan.ranges,
          .columns = plan.columns,
          .mean_offsets = plan.mean_offsets,
          .mean_blocks = plan.mean_blocks,
          .order = plan.order,
          .next_item = plan.next_item};
}
