// One block of threads per block of keys, bound by memory: keys and values of 8
// heads of 128 over a million tokens are 4 GiB, about 1 ms.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/block_means/block_means.h"

namespace overture::kernels {
namespace {

constexpr int kVector = 8;  // bf16 values of a 16-byte access

// blockDim: (head_dim / 8, parts of a block); grid: (blocks, heads).
__global__ void BlockMeansKernel(BlockMeansParams p) {
  extern __shared__ float parts[];  // [parts of a block, head_dim]
  const int64_t block = p.block_begin + blockIdx.x;
  const int column = threadIdx.x * kVector;
  const auto* row =
      static_cast<const __nv_bfloat16*>(p.rows) + blockIdx.y * p.stride_head +
      (block * p.block_rows + threadIdx.y * kMeanPartRows) * p.stride_row +
      column;
  float sums[kVector] = {};
#pragma unroll
  for (int r = 0; r < kMeanPartRows; ++r, row += p.stride_row) {
    const uint4 vector = *reinterpret_cast<const uint4*>(row);
    const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&vector);
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      const float2 pair = __bfloat1622float2(pairs[i]);
      sums[2 * i] += pair.x;
      sums[2 * i + 1] += pair.y;
    }
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    parts[threadIdx.y * p.head_dim + column + i] = sums[i];
  }
  __syncthreads();
  const int threads = blockDim.x * blockDim.y;
  for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < p.head_dim;
       i += threads) {
    float total = 0;
    for (int g = 0; g < blockDim.y; ++g) total += parts[g * p.head_dim + i];
    static_cast<__nv_bfloat16*>(p.means)[blockIdx.y * p.stride_mean_head +
                                         block * p.stride_mean_row + i] =
        __float2bfloat16_rn(total * (1.0f / static_cast<float>(p.block_rows)));
  }
}

}  // namespace

absl::Status LaunchBlockMeans(const BlockMeansParams& params, void* stream) {
  OVERTURE_RETURN_IF_ERROR(CheckBlockMeans(params));
  if (params.dtype != DType::kBF16) {
    return absl::UnimplementedError(absl::StrCat(
        "block means on the GPU take bf16, got ", Name(params.dtype)));
  }
  for (int64_t stride : {params.stride_row, params.stride_head}) {
    if (stride % kVector != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "block means on the GPU take strides that are multiples of 8 "
          "elements, got ",
          stride));
    }
  }
  if (params.block_begin == params.block_end) return absl::OkStatus();
  const dim3 grid(static_cast<unsigned>(params.block_end - params.block_begin),
                  static_cast<unsigned>(params.num_heads));
  const dim3 threads(params.head_dim / kVector,
                     params.block_rows / kMeanPartRows);
  BlockMeansKernel<<<grid, threads, threads.y * params.head_dim * sizeof(float),
                     static_cast<cudaStream_t>(stream)>>>(params);
  return CudaLaunchStatus("BlockMeansKernel");
}

}  // namespace overture::kernels
