// Attention of one query row over one KV head's rows: what a decoder does once
// per head and token. Bound by reading K and V once, so every query head of the
// KV head's group is served in the same pass.
//
// Thread-safe, no allocation; the caller spreads parts over threads and merges
// them (flash-decoding, https://pytorch.org/blog/flash-decoding/).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace overture::engine {

// Rows of one part. Fixed, so that the result does not depend on the number of
// threads.
inline constexpr int64_t kDecodePartRows = 512;

struct DecodeAttentionPart {
  DType dtype = DType::kBF16;    // of k and v: kBF16 or kF32
  const float* q = nullptr;      // [group, head_dim], scaled
  const std::byte* k = nullptr;  // [num_rows, head_dim]
  const std::byte* v = nullptr;
  int64_t num_rows = 0;  // 1 .. kDecodePartRows
  int32_t group = 0;     // query heads of the KV head
  int32_t head_dim = 0;
  float* out = nullptr;  // [group, head_dim], sum of exp(score - max) * v
  float* max = nullptr;  // [group]
  float* sum = nullptr;  // [group], of exp(score - max)
};

void AttendPart(const DecodeAttentionPart& part);

// Merges `num_parts` results of one query head, `stride` elements apart, into
// out[0 .. head_dim), divided by the total sum.
void MergeParts(const float* outs, const float* maxes, const float* sums,
                int64_t num_parts, int64_t stride_out, int64_t stride_stat,
                int32_t head_dim, float* out);

}  // namespace overture::engine
