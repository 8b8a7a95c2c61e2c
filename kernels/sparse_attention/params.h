// Arguments of the attention that executes a tile plan, CPU and GPU alike.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/tile_plan.h"

namespace overture::kernels {

// Softmax(q k^T * scale) v over the pairs of the plan, causal: key <= row.
// A row without keys gives o = 0, lse = -inf, so that partial results merge
// without a special case. Strides count elements; the head dim is contiguous.
struct SparseAttentionParams {
  DType dtype = DType::kBF16;  // of q, k, v and o: kBF16 or kF32
  const void* q = nullptr;     // [q_len, num_q_heads, head_dim] by strides
  const void* k = nullptr;     // [num_kv_heads, kv_len, head_dim] by strides
  const void* v = nullptr;     // as k
  void* o = nullptr;           // [q_len, num_q_heads, head_dim] by strides
  float* lse = nullptr;        // [num_q_heads, q_len], natural log; may be null
  // Means of the keys' and values' blocks, [num_kv_heads, whole blocks of
  // kMeanBlockKeys keys, head_dim] by strides, of `dtype`. A block that the
  // plan corrects enters as one key more: logit q k_mean * scale +
  // log(kMeanBlockKeys), value v_mean. Null if the plan corrects none.
  const void* k_means = nullptr;
  const void* v_means = nullptr;
  int64_t stride_q_row = 0;
  int64_t stride_q_head = 0;
  int64_t stride_kv_row = 0;  // usually head_dim
  int64_t stride_kv_head = 0;
  int64_t stride_mean_row = 0;
  int64_t stride_mean_head = 0;
  int64_t stride_o_row = 0;
  int64_t stride_o_head = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_q_heads
  int32_t head_dim = 0;
  float scale = 0;  // usually 1 / sqrt(head_dim)
  // Borrowed; gives q_begin, q_len, kv_len. num_lists is 1, num_kv_heads or
  // num_q_heads.
  const TilePlan* plan = nullptr;
};

}  // namespace overture::kernels
