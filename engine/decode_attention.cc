#include "engine/decode_attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/simd/simd.h"

namespace overture::engine {
namespace {

using kernels::simd::F32x16;
using kernels::simd::kLanes;

template <typename T>
OVERTURE_SIMD_INLINE void Scores(const float* q, const T* k, int64_t num_rows,
                                 int32_t head_dim, float* scores) {
  const int32_t whole = head_dim / kLanes * kLanes;
  for (int64_t row = 0; row < num_rows; ++row, k += head_dim) {
    F32x16 sums = {};
    for (int32_t i = 0; i < whole; i += kLanes) {
      sums += kernels::simd::Load(q + i) * kernels::simd::Load(k + i);
    }
    float sum = kernels::simd::Sum(sums);
    for (int32_t i = whole; i < head_dim; ++i) {
      sum += q[i] * static_cast<float>(k[i]);
    }
    scores[row] = sum;
  }
}

template <typename T>
OVERTURE_SIMD_INLINE void Accumulate(const float* weights, const T* v,
                                     int64_t num_rows, int32_t head_dim,
                                     float* out) {
  const int32_t whole = head_dim / kLanes * kLanes;
  for (int32_t i = 0; i < whole; i += kLanes) {
    F32x16 sum = {};
    const T* column = v + i;
    for (int64_t row = 0; row < num_rows; ++row, column += head_dim) {
      sum += weights[row] * kernels::simd::Load(column);
    }
    kernels::simd::Store(out + i, sum);
  }
  for (int32_t i = whole; i < head_dim; ++i) {
    float sum = 0;
    for (int64_t row = 0; row < num_rows; ++row) {
      sum += weights[row] * static_cast<float>(v[row * head_dim + i]);
    }
    out[i] = sum;
  }
}

OVERTURE_SIMD_CLONES void ScoresF32(const float* q, const float* k,
                                    int64_t num_rows, int32_t head_dim,
                                    float* scores) {
  Scores(q, k, num_rows, head_dim, scores);
}
OVERTURE_SIMD_CLONES void ScoresBf16(const float* q, const BFloat16* k,
                                     int64_t num_rows, int32_t head_dim,
                                     float* scores) {
  Scores(q, k, num_rows, head_dim, scores);
}
OVERTURE_SIMD_CLONES void AccumulateF32(const float* weights, const float* v,
                                        int64_t num_rows, int32_t head_dim,
                                        float* out) {
  Accumulate(weights, v, num_rows, head_dim, out);
}
OVERTURE_SIMD_CLONES void AccumulateBf16(const float* weights,
                                         const BFloat16* v, int64_t num_rows,
                                         int32_t head_dim, float* out) {
  Accumulate(weights, v, num_rows, head_dim, out);
}

}  // namespace

void AttendPart(const DecodeAttentionPart& part) {
  OVERTURE_CHECK(part.num_rows >= 1 && part.num_rows <= kDecodePartRows);
  const bool is_f32 = part.dtype == DType::kF32;
  float scores[kDecodePartRows];
  for (int32_t g = 0; g < part.group; ++g) {
    const float* q = part.q + g * part.head_dim;
    float* out = part.out + g * part.head_dim;
    if (is_f32) {
      ScoresF32(q, reinterpret_cast<const float*>(part.k), part.num_rows,
                part.head_dim, scores);
    } else {
      ScoresBf16(q, reinterpret_cast<const BFloat16*>(part.k), part.num_rows,
                 part.head_dim, scores);
    }
    const float max = *std::max_element(scores, scores + part.num_rows);
    float sum = 0;
    for (int64_t row = 0; row < part.num_rows; ++row) {
      scores[row] = std::exp(scores[row] - max);
      sum += scores[row];
    }
    if (is_f32) {
      AccumulateF32(scores, reinterpret_cast<const float*>(part.v),
                    part.num_rows, part.head_dim, out);
    } else {
      AccumulateBf16(scores, reinterpret_cast<const BFloat16*>(part.v),
                     part.num_rows, part.head_dim, out);
    }
    part.max[g] = max;
    part.sum[g] = sum;
  }
}

void MergeParts(const float* outs, const float* maxes, const float* sums,
                int64_t num_parts, int64_t stride_out, int64_t stride_stat,
                int32_t head_dim, float* out) {
  float max = maxes[0];
  for (int64_t p = 1; p < num_parts; ++p) {
    max = std::max(max, maxes[p * stride_stat]);
  }
  float sum = 0;
  std::fill_n(out, head_dim, 0.0f);
  for (int64_t p = 0; p < num_parts; ++p) {
    const float weight = std::exp(maxes[p * stride_stat] - max);
    sum += weight * sums[p * stride_stat];
    const float* partial = outs + p * stride_out;
    for (int32_t i = 0; i < head_dim; ++i) out[i] += weight * partial[i];
  }
  for (int32_t i = 0; i < head_dim; ++i) out[i] /= sum;
}

}  // namespace overture::engine
