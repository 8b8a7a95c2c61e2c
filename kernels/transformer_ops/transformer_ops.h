// The small per-element steps of a Llama layer on the GPU: the twins of
// transformer_ops_cpu.h, bf16 between products, the residual stream in fp32,
// arithmetic in fp32. Plain C++ header.
//
// All pointers are device pointers, 16-byte aligned; rows are contiguous unless
// a stride says otherwise. Every function launches on `stream` (a cudaStream_t)
// and returns; it borrows its arguments until the stream has passed the launch.
//
// There is no residual add here: the products that feed it add into the stream
// themselves (Linear::Apply with `accumulate`), which saves a pass.
//
// Where an output has `out_scales`, it is what an FP8 product reads: the bf16
// result as e4m3 with a scale a row, as QuantizeRowsCpu makes them.
//
// Errors: INVALID_ARGUMENT naming a size that the 16-byte accesses cannot take;
// those of the launch.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace overture::kernels {

// residual[r] = table[tokens[r]]. REQUIRES 0 <= tokens[r] < the table's rows.
struct EmbedParams {
  const int32_t* tokens = nullptr;  // [rows]
  const void* table = nullptr;      // bf16 [vocab, columns]
  float* residual = nullptr;        // [rows, columns]
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of 8
};
absl::Status LaunchEmbed(const EmbedParams& params, void* stream);

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight.
struct RmsNormParams {
  const float* x = nullptr;       // [rows, columns]
  const float* weight = nullptr;  // [columns]
  void* out = nullptr;            // [rows, columns], bf16 or e4m3
  float* out_scales = nullptr;    // [rows]; null: out is bf16
  double eps = 0;
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of 8, at most 32,768
};
absl::Status LaunchRmsNorm(const RmsNormParams& params, void* stream);

// Splits a fused QKV product: q and k are rotated (dimension i with i +
// head_dim / 2, angles in double so that a million positions stay exact), v is
// only rounded; k and v land in the [head, row] order of the cache.
struct RopeKvParams {
  // fp32 [rows, (num_q_heads + 2 * num_kv_heads) * head_dim]: Q, K, V.
  const float* qkv = nullptr;
  const double* inv_freq = nullptr;  // [head_dim / 2]
  void* q = nullptr;                 // bf16 [rows, num_q_heads * head_dim]
  void* k = nullptr;  // bf16; row r of head h at (h * stride_kv_head + r *
  void* v = nullptr;  // head_dim) elements
  int64_t stride_kv_head = 0;  // elements, a multiple of 8
  int64_t rows = 0;
  int64_t position_begin = 0;  // of row 0
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // a multiple of 16, at most 256
};
absl::Status LaunchRopeKv(const RopeKvParams& params, void* stream);

// out = silu(gate) * up.
struct SwiGluParams {
  const void* gate_up = nullptr;  // bf16 [rows, 2 * columns], gate first
  void* out = nullptr;            // [rows, columns], bf16 or e4m3
  float* out_scales = nullptr;    // [rows]; null: out is bf16
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of 8, at most 65,536
};
absl::Status LaunchSwiGlu(const SwiGluParams& params, void* stream);

}  // namespace overture::kernels
