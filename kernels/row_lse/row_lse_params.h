// The logarithm of single rows' sums of exponentials over all their keys: what
// part of its attention a sparse plan kept is measured against it
// (docs/sparse_plans.md, section 8).
//
//   lse[i, h] = log sum over c <= position i of exp(q_ih . k_c * scale), fp32
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"

namespace overture::kernels {

// Rows of one call: their positions travel as kernel arguments.
inline constexpr int32_t kMaxLseRows = 64;

struct RowLseParams {
  DType dtype = DType::kBF16;  // of q and k: kBF16 or kF32
  const void* q = nullptr;     // [rows, num_q_heads, head_dim] by strides
  const void* k = nullptr;     // [num_kv_heads, kv_len, head_dim] by strides
  int64_t stride_q_row = 0;    // elements, as the others
  int64_t stride_q_head = 0;
  int64_t stride_k_row = 0;
  int64_t stride_k_head = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int64_t kv_len = 0;
  float scale = 0;
  // Of the rows, 1 .. kMaxLseRows of them in any order, each in [0, kv_len);
  // host.
  absl::Span<const int64_t> positions;
  float* lse = nullptr;  // [rows, num_q_heads], natural log
  // The rows' softmax weights, [rows, num_q_heads, kv_len], 0 past a row's
  // position. May be null; on the CPU only.
  float* weights = nullptr;

  int32_t num_rows() const { return static_cast<int32_t>(positions.size()); }
  // Rows that read the keys of one KV head.
  int32_t rows_per_kv_head() const {
    return num_rows() * (num_q_heads / num_kv_heads);
  }
};

// What holds for every implementation. INVALID_ARGUMENT names the field, its
// value and its limit.
absl::Status CheckRowLse(const RowLseParams& params);

// The same for a limit that one implementation has.
absl::Status BadRowLseField(absl::string_view field, int64_t value,
                            absl::string_view limit);

}  // namespace overture::kernels
