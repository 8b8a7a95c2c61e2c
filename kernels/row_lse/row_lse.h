// row_lse_params.h on the GPU: the twin of row_lse_cpu.h, bf16 q and k, and
// what gathers its rows. Devices of compute capability 8.0 and later. Plain C++
// header. Launches on `stream` (a cudaStream_t) and returns, borrowing device
// memory until the stream has passed the launch.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/row_lse/row_lse_params.h"

namespace overture::kernels {

// Bytes of scratch of a call with up to `num_rows` rows.
int64_t RowLseScratchBytes(int32_t num_rows, int32_t num_q_heads,
                           int32_t num_kv_heads);

// As RowLseCpu, all pointers but `positions` on the device. Equal inputs give
// equal bits, on any device.
//
// `scratch` is 16-byte aligned; RESOURCE_EXHAUSTED names the bytes if it is too
// small. UNIMPLEMENTED for a dtype other than bf16 or a head dim other than 64,
// 96 and 128; INVALID_ARGUMENT for q or k that is not 16-byte aligned, strides
// that are not multiples of 8 elements, and as CheckRowLse.
absl::Status LaunchRowLse(const RowLseParams& params, void* scratch,
                          int64_t scratch_bytes, void* stream);

// Rows of attention's input and log-sum-exp, taken out of a run of rows.
struct TakeRowsParams {
  const void* q = nullptr;     // bf16 [num_rows, row_elements]
  const float* lse = nullptr;  // [num_q_heads, num_rows], may be null
  int64_t num_rows = 0;
  int64_t row_elements = 0;  // a multiple of 8
  int32_t num_q_heads = 0;
  // Which, in [0, num_rows), at most kMaxLseRows; host.
  absl::Span<const int64_t> rows;
  void* out_q = nullptr;     // [rows, row_elements]
  float* out_lse = nullptr;  // [rows, num_q_heads], if lse
};

// INVALID_ARGUMENT names what does not fit. No row is no launch.
absl::Status LaunchTakeRows(const TakeRowsParams& params, void* stream);

}  // namespace overture::kernels
