// The quantised queries of one launch: between quantize.cu and launch.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/sparse_attention/device_plan.h"

namespace overture::kernels {

// Views into the scratch of LaunchFp8Attention, for `num_items` work items of
// 128 rows: item = head * num_q_tiles + q_tile, as in the plan's order.
struct QuantizedQueries {
  uint8_t* codes = nullptr;  // [num_items, QueryTileBytes]
  float* scale = nullptr;    // 2^exponent, [num_items, 128]
  float* offset = nullptr;   // q . c in units of log2, as scale
};
QuantizedQueries QueriesIn(void* scratch, int32_t head_dim, int64_t num_items);

struct QuantizeQueriesParams {
  const __nv_bfloat16* q = nullptr;  // [q_len, num_q_heads, 128] by strides
  const float* mean = nullptr;       // Fp8Kv::mean
  int64_t stride_row = 0;
  int64_t stride_head = 0;
  float scale_log2 = 0;   // softmax scale * log2(e), which codes hold
  int32_t num_heads = 0;  // of items: query heads in packs
  int32_t group = 0;      // of those per KV head
  DeviceTilePlan plan;
  QuantizedQueries out;
};
absl::Status LaunchQuantizeQueries(const QuantizeQueriesParams& params,
                                   cudaStream_t stream);

}  // namespace overture::kernels
