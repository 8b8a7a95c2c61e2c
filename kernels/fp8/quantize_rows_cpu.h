// Rows of bf16 as e4m3 with one scale a row: value ~ code * scale, the row's
// largest magnitude at 448. What FP8 products read, on both sides: a row is a
// token's activations or an output channel's weights. This is the oracle of
// quantize_rows.h and of the FP8 outputs of transformer_ops.h.
//
//   largest = max(max |x|, kMinRowMax); scale = largest / 448
//   code    = e4m3(x * (448 / largest)), all in fp32
//
// A row of zeros gives zeros. A row with an infinity or a NaN has a scale that
// is infinite or NaN, and at least one code that is NaN, so all its products
// are NaN: what went wrong stays seen.
//
// A step of e4m3 is 2^-3 of the value, so an element is off by at most 2^-4 of
// itself or 2^-10 * scale, whichever is more.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/fp8/e4m3.h"

namespace overture::kernels {

// Smaller rows are taken as this large, so that 448 / largest stays finite.
inline constexpr float kMinRowMax = 0x1p-100f;

// x: [rows, columns]; codes: as x; scales: [rows]. Thread-safe; rows are spread
// over the OpenMP threads.
void QuantizeRowsCpu(const BFloat16* x, int64_t rows, int64_t columns,
                     E4M3* codes, float* scales);

}  // namespace overture::kernels
