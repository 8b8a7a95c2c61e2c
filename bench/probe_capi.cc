// The GPU's probe attention behind two C functions, for bench/probe_gpu.py.
// q [heads, rows, dim] and k [kv heads, keys, dim], bf16 and contiguous.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "kernels/probe_attention/probe_attention.h"

extern "C" {

struct OvertureProbeShape {
  int64_t kv_len;
  int32_t num_rows;
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t window_rows;
  int32_t sm80;  // not 0: the kernel of older devices, wherever it runs
};

int64_t OvertureProbeScratchBytes(const OvertureProbeShape* shape) {
  return overture::kernels::ProbeScratchBytes(shape->kv_len,
                                              shape->num_q_heads);
}

// 0, or 1 with the reason on standard error. Outputs as ProbeAttentionParams',
// each may be null; all on the device.
int OvertureProbe(const OvertureProbeShape* shape, const void* q, const void* k,
                  float* column_sums, float* diagonal_sums, float* window_votes,
                  void* scratch, int64_t scratch_bytes, void* stream) {
  const int64_t dim = shape->head_dim;
  const overture::kernels::ProbeAttentionParams params = {
      .q = q,
      .k = k,
      .stride_q_row = dim,
      .stride_q_head = shape->num_rows * dim,
      .stride_k_row = dim,
      .stride_k_head = shape->kv_len * dim,
      .num_q_heads = shape->num_q_heads,
      .num_kv_heads = shape->num_kv_heads,
      .head_dim = shape->head_dim,
      .num_rows = shape->num_rows,
      .kv_len = shape->kv_len,
      .scale = 1.0f / std::sqrt(static_cast<float>(dim)),
      .column_sums = column_sums,
      .diagonal_sums = diagonal_sums,
      .window_votes = window_votes,
      .window_rows = shape->window_rows};
  const absl::Status status = shape->sm80 != 0
                                  ? overture::kernels::LaunchProbeAttentionWith(
                                        overture::kernels::ProbeKernel::kSm80,
                                        params, scratch, scratch_bytes, stream)
                                  : overture::kernels::LaunchProbeAttention(
                                        params, scratch, scratch_bytes, stream);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

}  // extern "C"
