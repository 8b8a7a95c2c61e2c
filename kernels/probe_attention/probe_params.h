// Probe attention: attention of the last rows of a segment over all its keys,
// summed along columns and diagonals: what vertical-slash selection and
// SnapKV's vote both need, in one pass (docs/design.md).
//
// P[i, c] = softmax over c <= row i of q_i . k_c * scale, fp32, rows i = the
// `num_rows` last positions before kv_len.
// Source: MInference `vertical_and_slash_kernel`; SnapKV arXiv 2404.14469,
// section 4; differs as the comments at each field say.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"

namespace overture::kernels {

struct ProbeAttentionParams {
  DType dtype = DType::kBF16;  // of q and k: kBF16 or kF32
  const void* q = nullptr;     // [num_rows, num_q_heads, head_dim] by strides
  const void* k = nullptr;     // [num_kv_heads, kv_len, head_dim] by strides
  int64_t stride_q_row = 0;
  int64_t stride_q_head = 0;
  int64_t stride_k_row = 0;
  int64_t stride_k_head = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t num_rows = 0;  // R, 1 .. kv_len
  int64_t kv_len = 0;
  float scale = 0;

  // Outputs; each may be null.
  // Sum of P over all rows, per column: [num_q_heads, kv_len].
  float* column_sums = nullptr;
  // Sum over rows of P[i, row - D], per distance D: [num_q_heads, kv_len].
  float* diagonal_sums = nullptr;
  // Sum over the last `window_rows` rows only, then mean over the query heads
  // of each KV head: [num_kv_heads, kv_len]. The vote before pooling.
  float* window_votes = nullptr;
  int32_t window_rows = 0;  // W <= num_rows, when window_votes is set
};

// What holds for every implementation. INVALID_ARGUMENT names the field, its
// value and its limit.
absl::Status CheckProbeAttention(const ProbeAttentionParams& params);

// The same for a limit that one implementation has.
absl::Status BadProbeField(absl::string_view field, int64_t value,
                           absl::string_view limit);

}  // namespace overture::kernels
