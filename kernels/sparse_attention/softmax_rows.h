// The per-row steps of the online softmax between the two products of the CPU
// attention (FlashAttention, arXiv 2205.14135, section 3.1), in base 2:
// exp(s * scale - m) = 2^(s * scale * log2(e) - m * log2(e)), which saves one
// multiplication per score.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace overture::kernels {

// State of one row: the largest exponent so far and the sum of 2^(exponent -
// max), fp32. A row that has seen no key has max = -inf and sum = 0.
struct SoftmaxRow {
  float max;
  float sum;
};

// Takes `count` scores (a multiple of 16; masked ones are -inf), writes their
// weights 2^(score * scale_log2 - new max) to p and updates the row. Returns
// the factor for what was accumulated before. -inf minus -inf is never formed;
// a NaN score makes sum NaN. REQUIRES scale_log2 > 0.
// The sum is of the weights before their rounding to bf16: each rounded weight
// is off by 2^-8 of itself at most, without bias.
float UpdateRow(const float* scores, int64_t count, float scale_log2,
                SoftmaxRow& row, float* p);
float UpdateRow(const float* scores, int64_t count, float scale_log2,
                SoftmaxRow& row, BFloat16* p);

// The same with weights rounded to e4m3 as FP8 attention has them
// (fp8_attention.h), and their sum that of the rounded ones. SoftmaxRow::max is
// then a whole number, at most 1/2 below the largest exponent that it stands
// for, so that a code does not depend on which that is unless it is subnormal:
// less than 2^-(6 + kTopCodeLog2) of 2^max.
inline constexpr int kTopCodeLog2 = 5;  // of the code of a weight 2^max
float UpdateRowE4M3(const float* scores, int64_t count, float scale_log2,
                    SoftmaxRow& row, float* p);

// x[i] *= factor; count a multiple of 16.
void ScaleRow(float* x, int64_t count, float factor);

// out[i] = x[i] * factor; count a multiple of 16.
void FinishRow(const float* x, int64_t count, float factor, float* out);
void FinishRow(const float* x, int64_t count, float factor, BFloat16* out);

}  // namespace overture::kernels
