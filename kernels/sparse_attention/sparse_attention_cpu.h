// Attention over any tile plan on the CPU: the back end on machines without a
// GPU and the oracle of the GPU kernels. Key tiles and gathered columns become
// dense products (oneDNN; AMX or AVX-512 bf16 where the CPU has it) under one
// online softmax in fp32. Work is spread over (head, query tile) by OpenMP,
// largest first; the result does not depend on the number of threads.
//
// Thread-safe; borrows all pointers until it returns. INVALID_ARGUMENT names a
// field that does not fit; it never reads past kv_len rows.
// Source: FlashAttention's online softmax (arXiv 2205.14135, section 3.1) and
// the gathered columns of MInference (arXiv 2407.02490, section 3.2).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/sparse_attention/params.h"

namespace overture::kernels {

// What the softmax's weights are when they meet V.
enum class WeightRounding : uint8_t {
  kCompute,  // numbers of the dtype, divided by the sum of what they were
  kE4M3,     // codes (softmax_rows.h), divided by the sum of codes; f32 alone
};

absl::Status SparseAttentionCpu(
    const SparseAttentionParams& params,
    WeightRounding rounding = WeightRounding::kCompute);

}  // namespace overture::kernels
