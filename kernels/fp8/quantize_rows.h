// Rows of bf16 as e4m3 on the GPU: the twin of quantize_rows_cpu.h, the same
// bits. Plain C++ header.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace overture::kernels {

// Device pointers, 16-byte aligned.
struct QuantizeRowsParams {
  const void* x = nullptr;  // bf16 [rows, columns]
  void* codes = nullptr;    // e4m3 [rows, columns]
  float* scales = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of 8, at most 65,536
};

// Launches on `stream` (a cudaStream_t) and returns; borrows the arguments
// until the stream has passed the launch. INVALID_ARGUMENT names a size that
// does not fit.
absl::Status LaunchQuantizeRows(const QuantizeRowsParams& params, void* stream);

}  // namespace overture::kernels
