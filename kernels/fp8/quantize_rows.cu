#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "base/cuda/status.h"
#include "kernels/fp8/quantize_rows.h"
#include "kernels/row_block.cuh"

namespace overture::kernels {
namespace {

// Vectors of a row that a thread keeps: rows of up to 65,536.
constexpr int kFewVectors = 4;
constexpr int kManyVectors = 8;

// One row per block, read once.
template <int kVectors>
__global__ void __launch_bounds__(kMaxRowThreads)
    QuantizeRowsKernel(const __nv_bfloat16* x, uint8_t* codes, float* scales,
                       int64_t columns) {
  const __nv_bfloat16* from = x + blockIdx.x * columns;
  Bf16x8 row[kVectors] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t c = (int64_t{v} * blockDim.x + threadIdx.x) * kVector;
    if (c < columns) row[v] = *reinterpret_cast<const Bf16x8*>(from + c);
  }
  StoreRowAsCodes(row, columns, codes + blockIdx.x * columns,
                  scales + blockIdx.x);
}

}  // namespace

absl::Status LaunchQuantizeRows(const QuantizeRowsParams& params,
                                void* stream) {
  constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;
  if (params.rows < 1 || params.rows > kMaxRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("quantize rows: rows is ", params.rows,
                     ", must be in [1, ", kMaxRows, "]"));
  }
  if (params.columns < 1 || params.columns % kVector != 0 ||
      params.columns > MaxColumns(kManyVectors)) {
    return absl::InvalidArgumentError(
        absl::StrCat("quantize rows: columns is ", params.columns,
                     ", must be a multiple of ", kVector, " in 1 .. ",
                     MaxColumns(kManyVectors)));
  }
  const bool few = params.columns <= MaxColumns(kFewVectors);
  const auto kernel =
      few ? QuantizeRowsKernel<kFewVectors> : QuantizeRowsKernel<kManyVectors>;
  kernel<<<static_cast<unsigned>(params.rows),
           RowThreads(params.columns, few ? kFewVectors : kManyVectors), 0,
           static_cast<cudaStream_t>(stream)>>>(
      static_cast<const __nv_bfloat16*>(params.x),
      static_cast<uint8_t*>(params.codes), params.scales, params.columns);
  return CudaLaunchStatus("QuantizeRowsKernel");
}

}  // namespace overture::kernels
