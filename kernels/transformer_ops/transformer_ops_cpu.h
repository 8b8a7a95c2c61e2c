// The small per-element steps of a Llama layer on the CPU, fused where that
// saves a pass over memory. All take row-major [rows, columns], spread rows
// over OpenMP threads, compute in fp32, and are thread-safe. `dtype` is kF32 or
// kBF16. REQUIRES sizes that fit; callers validate shapes when a model loads.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace overture::kernels {

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight. x: fp32 residual stream
// [rows, columns]; out: `dtype`.
void RmsNormCpu(const float* x, const float* weight, double eps, int64_t rows,
                int64_t columns, DType dtype, void* out);

// x += y, y fp32.
void AddCpu(float* x, const float* y, int64_t count);

// out = silu(gate) * up; gate_up: [rows, 2 * columns] with gate first, fp32 or
// `dtype` as `in_dtype` says.
void SwiGluCpu(const void* gate_up, DType in_dtype, int64_t rows,
               int64_t columns, DType dtype, void* out);

// RoPE angles: cos and sin of position * inv_freq[i], computed in double so
// that a million positions stay exact, i < head_dim / 2.
struct RopeTable {
  std::vector<double> inv_freq;  // [head_dim / 2]
};

// Rotates dimension i with i + head_dim / 2 of every head of x, [rows,
// num_heads, head_dim] by strides (elements), fp32 in, `dtype` out. Row r is at
// `position_begin + r`. out may have other strides: that is how K lands in the
// [head, row] order of the cache in the same pass.
struct RopeParams {
  const float* x = nullptr;
  int64_t stride_x_row = 0;
  int64_t stride_x_head = 0;
  void* out = nullptr;
  int64_t stride_out_row = 0;
  int64_t stride_out_head = 0;
  DType dtype = DType::kBF16;
  int64_t rows = 0;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  int64_t position_begin = 0;
};
void RopeCpu(const RopeTable& table, const RopeParams& params);

// Copies with conversion, same strides as RopeParams, without rotation: V's
// way into the cache.
void CastHeadsCpu(const RopeParams& params);

}  // namespace overture::kernels
