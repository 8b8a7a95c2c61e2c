// Three kernels per block of at most 64 rows and per batch of heads: logits on
// the tensor cores into scratch, row maxima and sums, then sums of the
// probabilities along columns and diagonals. Scratch is read three times: 64
// rows of 32 heads over 128K keys are 1 GiB, under 1 ms at 4 TB/s.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <mma.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/probe_attention/probe_attention.h"

namespace overture::kernels {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int kRows = 64;      // rows of a block
constexpr int kKeys = 64;      // keys of a logits tile
constexpr int kMma = 16;       // rows, columns and depth of one product
constexpr int kThreads = 128;  // of a logits tile: 4 warps x 16 rows
constexpr int kMaxDim = 128;
constexpr int kPad = 8;  // elements, against bank conflicts
constexpr int kSumThreads = 256;
constexpr int kRowStatThreads = 512;
constexpr int kWarp = 32;

int64_t PaddedKeys(int64_t kv_len) {
  return (kv_len + kKeys - 1) / kKeys * kKeys;
}
// Floats of one head: its logits, then maximum and inverse sum of each row.
int64_t HeadFloats(int64_t kv_len) {
  return kRows * PaddedKeys(kv_len) + 2 * kRows;
}

// One block of rows of one batch of heads.
struct BlockParams {
  const __nv_bfloat16* q;  // row 0 of the block, head 0 of the batch
  const __nv_bfloat16* k;  // head 0 of all
  int64_t stride_q_row;
  int64_t stride_q_head;
  int64_t stride_k_row;
  int64_t stride_k_head;
  int32_t head_dim;
  int32_t first_head;  // of the batch
  int32_t num_heads;   // of the batch
  int32_t group;       // query heads of a KV head
  int32_t num_rows;    // of the block, <= kRows
  int32_t window_row;  // first of the block that votes; num_rows if none
  int64_t first_row;   // position of row 0
  int64_t kv_len;
  int64_t padded_keys;
  float scale;
  float* logits;   // [num_heads, kRows, padded_keys]
  float* maxima;   // [num_heads, kRows]
  float* inverse;  // [num_heads, kRows]
};

// logits = q k^T * scale of one tile of keys and one head. Rows and keys that
// do not exist are zeros.
__global__ void __launch_bounds__(kThreads) LogitsKernel(BlockParams p) {
  __shared__ alignas(32) __nv_bfloat16 q[kRows * (kMaxDim + kPad)];
  __shared__ alignas(32) __nv_bfloat16 k[kKeys * (kMaxDim + kPad)];
  const int head = blockIdx.y;
  const int64_t key_begin = int64_t{blockIdx.x} * kKeys;
  const int stride = p.head_dim + kPad;
  const __nv_bfloat16* from_q = p.q + head * p.stride_q_head;
  const __nv_bfloat16* from_k =
      p.k + (p.first_head + head) / p.group * p.stride_k_head;

  // Stage both tiles, 16 bytes a thread.
  const int vectors = p.head_dim / 8;
  for (int item = threadIdx.x; item < kRows * vectors; item += kThreads) {
    const int row = item / vectors;
    const int i = item % vectors * 8;
    const uint4 zero = {0, 0, 0, 0};
    *reinterpret_cast<uint4*>(q + row * stride + i) =
        row < p.num_rows
            ? *reinterpret_cast<const uint4*>(from_q + row * p.stride_q_row + i)
            : zero;
    *reinterpret_cast<uint4*>(k + row * stride + i) =
        key_begin + row < p.kv_len
            ? *reinterpret_cast<const uint4*>(
                  from_k + (key_begin + row) * p.stride_k_row + i)
            : zero;
  }
  __syncthreads();

  // A warp multiplies its 16 rows with all keys of the tile.
  constexpr int kTiles = kKeys / kMma;
  const int row = threadIdx.x / kWarp * kMma;
  wmma::fragment<wmma::accumulator, kMma, kMma, kMma, float> sums[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) wmma::fill_fragment(sums[t], 0.0f);
  for (int i = 0; i < p.head_dim; i += kMma) {
    wmma::fragment<wmma::matrix_a, kMma, kMma, kMma, __nv_bfloat16,
                   wmma::row_major>
        a;
    wmma::load_matrix_sync(a, q + row * stride + i, stride);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      wmma::fragment<wmma::matrix_b, kMma, kMma, kMma, __nv_bfloat16,
                     wmma::col_major>
          b;
      wmma::load_matrix_sync(b, k + t * kMma * stride + i, stride);
      wmma::mma_sync(sums[t], a, b, sums[t]);
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < sums[t].num_elements; ++i) sums[t].x[i] *= p.scale;
    wmma::store_matrix_sync(p.logits +
                                (int64_t{head} * kRows + row) * p.padded_keys +
                                key_begin + t * kMma,
                            sums[t], p.padded_keys, wmma::mem_row_major);
  }
}

// Result in every thread, added in the same order on every run.
template <typename Op>
__device__ float BlockReduce(float value, float* shared, Op op) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, lane));
  }
  __syncthreads();  // the last use of `shared` is over
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = shared[0];
  for (int warp = 1; warp < kRowStatThreads / kWarp; ++warp) {
    value = op(value, shared[warp]);
  }
  return value;
}

// Maximum and 1 / sum of one row of one head over the keys it sees.
__global__ void __launch_bounds__(kRowStatThreads)
    RowStatsKernel(BlockParams p) {
  __shared__ float shared[kRowStatThreads / kWarp];
  const int64_t index = int64_t{blockIdx.y} * kRows + blockIdx.x;
  const float* logits = p.logits + index * p.padded_keys;
  const int64_t visible = p.first_row + blockIdx.x + 1;
  float max = -INFINITY;
  for (int64_t c = threadIdx.x; c < visible; c += kRowStatThreads) {
    max = fmaxf(max, logits[c]);
  }
  max = BlockReduce(max, shared, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  for (int64_t c = threadIdx.x; c < visible; c += kRowStatThreads) {
    sum += __expf(logits[c] - max);
  }
  sum = BlockReduce(sum, shared, [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) {
    p.maxima[index] = max;
    p.inverse[index] = 1.0f / sum;
  }
}

// P[row, column] of the batch's `head`; the column is one that the row sees.
__device__ float Probability(const BlockParams& p, int head, int row,
                             int64_t column) {
  const int64_t index = int64_t{head} * kRows + row;
  return __expf(p.logits[index * p.padded_keys + column] - p.maxima[index]) *
         p.inverse[index];
}

// Sum over the block's rows from `first` that see `column`.
__device__ float ColumnSum(const BlockParams& p, int head, int first,
                           int64_t column) {
  float sum = 0;
  for (int row = first; row < p.num_rows; ++row) {
    if (column <= p.first_row + row) sum += Probability(p, head, row, column);
  }
  return sum;
}

// A thread per column and head.
__global__ void ColumnSumKernel(BlockParams p, float* column_sums) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= p.kv_len) return;
  const int head = blockIdx.y;
  column_sums[(p.first_head + head) * p.kv_len + column] +=
      ColumnSum(p, head, 0, column);
}

// A thread per distance and head.
__global__ void DiagonalSumKernel(BlockParams p, float* diagonal_sums) {
  const int64_t distance = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (distance >= p.kv_len) return;
  const int head = blockIdx.y;
  float sum = 0;
  for (int row = 0; row < p.num_rows; ++row) {
    const int64_t column = p.first_row + row - distance;
    if (column >= 0) sum += Probability(p, head, row, column);
  }
  diagonal_sums[(p.first_head + head) * p.kv_len + distance] += sum;
}

// A thread per column and KV head: its query heads of the batch in order.
__global__ void VoteKernel(BlockParams p, float* votes) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= p.kv_len) return;
  const int kv_head = p.first_head / p.group + blockIdx.y;
  const int begin = max(kv_head * p.group, p.first_head) - p.first_head;
  const int end =
      min((kv_head + 1) * p.group, p.first_head + p.num_heads) - p.first_head;
  float sum = 0;
  for (int head = begin; head < end; ++head) {
    sum += ColumnSum(p, head, p.window_row, column);
  }
  votes[kv_head * p.kv_len + column] += sum / p.group;
}

absl::Status BadField(absl::string_view field, int64_t value,
                      absl::string_view limit) {
  return absl::InvalidArgumentError(absl::StrCat(
      "probe attention: ", field, " is ", value, ", must be ", limit));
}

absl::Status Check(const ProbeAttentionParams& p) {
  if (p.dtype != DType::kBF16) {
    return absl::UnimplementedError(
        absl::StrCat("GPU probe attention takes bf16, got ", Name(p.dtype)));
  }
  if (p.head_dim < kMma || p.head_dim > kMaxDim || p.head_dim % kMma != 0) {
    return absl::UnimplementedError(absl::StrCat(
        "GPU probe attention takes a head dim that is a multiple of ", kMma,
        " up to ", kMaxDim, ", got ", p.head_dim));
  }
  if (p.num_kv_heads < 1) {
    return BadField("num_kv_heads", p.num_kv_heads, ">= 1");
  }
  if (p.num_q_heads < 1 || p.num_q_heads % p.num_kv_heads != 0) {
    return BadField(
        "num_q_heads", p.num_q_heads,
        absl::StrCat("a positive multiple of num_kv_heads = ", p.num_kv_heads));
  }
  constexpr int64_t kMaxKv = std::numeric_limits<int32_t>::max() - kKeys;
  if (p.kv_len < 1 || p.kv_len > kMaxKv) {
    return BadField("kv_len", p.kv_len, absl::StrCat("1 .. ", kMaxKv));
  }
  if (p.num_rows < 1 || p.num_rows > p.kv_len) {
    return BadField("num_rows", p.num_rows,
                    absl::StrCat("1 .. kv_len = ", p.kv_len));
  }
  if (p.window_votes != nullptr &&
      (p.window_rows < 1 || p.window_rows > p.num_rows)) {
    return BadField("window_rows", p.window_rows,
                    absl::StrCat("1 .. num_rows = ", p.num_rows));
  }
  for (const int64_t stride :
       {p.stride_q_row, p.stride_q_head, p.stride_k_row, p.stride_k_head}) {
    if (stride % 8 != 0) {
      return BadField("a stride", stride, "a multiple of 8 elements");
    }
  }
  if (!std::isfinite(p.scale)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "probe attention: scale is ", p.scale, ", must be finite"));
  }
  return absl::OkStatus();
}

absl::Status Clear(float* sums, int64_t count, cudaStream_t stream) {
  if (sums == nullptr) return absl::OkStatus();
  return CudaStatus(cudaMemsetAsync(sums, 0, count * sizeof(float), stream),
                    "clearing probe sums");
}

absl::Status LaunchBlock(const ProbeAttentionParams& params,
                         const BlockParams& p, cudaStream_t stream) {
  const unsigned heads = p.num_heads;
  LogitsKernel<<<dim3(p.padded_keys / kKeys, heads), kThreads, 0, stream>>>(p);
  OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("LogitsKernel"));
  RowStatsKernel<<<dim3(p.num_rows, heads), kRowStatThreads, 0, stream>>>(p);
  OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("RowStatsKernel"));
  const unsigned columns = (p.kv_len + kSumThreads - 1) / kSumThreads;
  if (params.column_sums != nullptr) {
    ColumnSumKernel<<<dim3(columns, heads), kSumThreads, 0, stream>>>(
        p, params.column_sums);
    OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("ColumnSumKernel"));
  }
  if (params.diagonal_sums != nullptr) {
    DiagonalSumKernel<<<dim3(columns, heads), kSumThreads, 0, stream>>>(
        p, params.diagonal_sums);
    OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("DiagonalSumKernel"));
  }
  if (params.window_votes != nullptr && p.window_row < p.num_rows) {
    const int first = p.first_head / p.group;
    const int last = (p.first_head + p.num_heads - 1) / p.group;
    VoteKernel<<<dim3(columns, last - first + 1), kSumThreads, 0, stream>>>(
        p, params.window_votes);
    OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("VoteKernel"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ProbeScratchBytes(int64_t kv_len, int32_t num_heads) {
  return num_heads * HeadFloats(kv_len) * static_cast<int64_t>(sizeof(float));
}

absl::Status LaunchProbeAttention(const ProbeAttentionParams& params,
                                  void* scratch, int64_t scratch_bytes,
                                  void* stream) {
  OVERTURE_RETURN_IF_ERROR(Check(params));
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const int64_t fitting = scratch_bytes / ProbeScratchBytes(params.kv_len, 1);
  if (fitting < 1) {
    return absl::ResourceExhaustedError(
        absl::StrCat("probe attention: scratch of ", scratch_bytes,
                     " bytes, needs ", ProbeScratchBytes(params.kv_len, 1)));
  }
  const int32_t batch =
      static_cast<int32_t>(std::min<int64_t>(fitting, params.num_q_heads));
  OVERTURE_RETURN_IF_ERROR(Clear(
      params.column_sums, params.num_q_heads * params.kv_len, cuda_stream));
  OVERTURE_RETURN_IF_ERROR(Clear(
      params.diagonal_sums, params.num_q_heads * params.kv_len, cuda_stream));
  OVERTURE_RETURN_IF_ERROR(Clear(
      params.window_votes, params.num_kv_heads * params.kv_len, cuda_stream));

  BlockParams p = {.k = static_cast<const __nv_bfloat16*>(params.k),
                   .stride_q_row = params.stride_q_row,
                   .stride_q_head = params.stride_q_head,
                   .stride_k_row = params.stride_k_row,
                   .stride_k_head = params.stride_k_head,
                   .head_dim = params.head_dim,
                   .group = params.num_q_heads / params.num_kv_heads,
                   .kv_len = params.kv_len,
                   .padded_keys = PaddedKeys(params.kv_len),
                   .scale = params.scale};
  p.logits = static_cast<float*>(scratch);
  p.maxima = p.logits + batch * kRows * p.padded_keys;
  p.inverse = p.maxima + batch * kRows;
  const int32_t window_begin = params.num_rows - params.window_rows;
  for (int32_t head = 0; head < params.num_q_heads; head += batch) {
    p.first_head = head;
    p.num_heads = std::min(batch, params.num_q_heads - head);
    for (int32_t row = 0; row < params.num_rows; row += kRows) {
      p.num_rows = std::min(kRows, params.num_rows - row);
      p.window_row = std::clamp(window_begin - row, 0, p.num_rows);
      p.first_row = params.kv_len - params.num_rows + row;
      p.q = static_cast<const __nv_bfloat16*>(params.q) +
            row * params.stride_q_row + head * params.stride_q_head;
      OVERTURE_RETURN_IF_ERROR(LaunchBlock(params, p, cuda_stream));
    }
  }
  return absl::OkStatus();
}

}  // namespace overture::kernels
