// The FP8 attention on the CPU: the oracle of fp8_attention.h. It quantises Q,
// K, V and probabilities to the same codes and divides by the sum of codes; its
// products and exponentials are fp32's, the GPU's scores and exponentials f16,
// so that beside a border between two codes they may take different ones. Not a
// fast path: a CPU gains nothing from e4m3.
//
// Thread-safe; borrows all pointers, which are the host's, until it returns.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/fp8_attention/quantized_kv.h"
#include "kernels/sparse_attention/params.h"

namespace overture::kernels {

// Writes params.out, byte for byte what LaunchQuantizeKv writes wherever the
// mean of the first keys is the same float. INVALID_ARGUMENT as Validate.
absl::Status QuantizeKvCpu(const QuantizeKvParams& params);

// Attention over params.plan, single columns included, with codes in place of
// q, k and v (bf16). Errors as SparseAttentionCpu.
absl::Status Fp8AttentionCpu(const SparseAttentionParams& params);

// What that allocates, may throw std::bad_alloc for: codes and values of all
// keys, and queries and outputs in fp32.
int64_t Fp8AttentionCpuBytes(int32_t num_q_heads, int32_t num_kv_heads,
                             int32_t head_dim, int64_t q_len, int64_t kv_len);

}  // namespace overture::kernels
