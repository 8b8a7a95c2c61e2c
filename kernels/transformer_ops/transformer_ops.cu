#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/transformer_ops/transformer_ops.h"

namespace overture::kernels {
namespace {

constexpr int kVector = 8;           // elements of 16 bytes of bf16
constexpr int kWarp = 32;            // lanes
constexpr int kRowThreads = 256;     // of a norm's block
constexpr int kFlatThreads = 256;    // of element-wise kernels
constexpr int kMaxHalf = 128;        // of head_dim, in shared memory
constexpr int64_t kMaxGrid = 65535;  // y and z

struct alignas(16) Bf16x8 {
  __nv_bfloat162 pairs[kVector / 2];
};

__device__ void Load8(const float* from, float* to) {
  const float4 a = reinterpret_cast<const float4*>(from)[0];
  const float4 b = reinterpret_cast<const float4*>(from)[1];
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
  to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

__device__ void Load8(const __nv_bfloat16* from, float* to) {
  const Bf16x8 v = *reinterpret_cast<const Bf16x8*>(from);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const float2 pair = __bfloat1622float2(v.pairs[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

__device__ void Store8(const float* from, float* to) {
  reinterpret_cast<float4*>(to)[0] = {from[0], from[1], from[2], from[3]};
  reinterpret_cast<float4*>(to)[1] = {from[4], from[5], from[6], from[7]};
}

__device__ void Store8(const float* from, __nv_bfloat16* to) {
  Bf16x8 v;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    v.pairs[i] = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
  }
  *reinterpret_cast<Bf16x8*>(to) = v;
}

// One vector of one row per thread.
__global__ void EmbedKernel(const int32_t* tokens, const __nv_bfloat16* table,
                            float* residual, int64_t vectors,
                            int vectors_per_row) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= vectors) return;
  const int64_t row = index / vectors_per_row;
  const int64_t column = (index - row * vectors_per_row) * kVector;
  const int64_t columns = int64_t{vectors_per_row} * kVector;
  float values[kVector];
  Load8(table + tokens[row] * columns + column, values);
  Store8(values, residual + row * columns + column);
}

// Sum over the block, the same in every thread and on every run.
__device__ float BlockSum(float value) {
  __shared__ float partial[kRowThreads / kWarp];
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, lane);
  }
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kRowThreads / kWarp; ++warp) sum += partial[warp];
  return sum;
}

// One row per block. The second read of the row comes from the cache.
__global__ void __launch_bounds__(kRowThreads)
    RmsNormKernel(const float* x, const float* weight, __nv_bfloat16* out,
                  double eps, int64_t columns) {
  const float* row = x + blockIdx.x * columns;
  float squares = 0;
  float values[kVector];
  for (int64_t c = threadIdx.x * kVector; c < columns;
       c += kRowThreads * kVector) {
    Load8(row + c, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += values[i] * values[i];
  }
  const double mean = double{BlockSum(squares)} / columns;
  const float scale = static_cast<float>(1.0 / sqrt(mean + eps));
  float weights[kVector];
  for (int64_t c = threadIdx.x * kVector; c < columns;
       c += kRowThreads * kVector) {
    Load8(row + c, values);
    Load8(weight + c, weights);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] *= scale * weights[i];
    Store8(values, out + blockIdx.x * columns + c);
  }
}

struct RopeKernelParams {
  RopeKvParams p;
  __nv_bfloat16* q;  // [rows, num_q_heads, head_dim]
  __nv_bfloat16* k;  // [num_kv_heads, rows, head_dim] by strides
  __nv_bfloat16* v;
};

// One row per block: its angles once, for all heads.
__global__ void RopeKvKernel(RopeKernelParams params) {
  const RopeKvParams& p = params.p;
  __shared__ alignas(16) float cosines[kMaxHalf];
  __shared__ alignas(16) float sines[kMaxHalf];
  const int64_t row = blockIdx.x;
  const int half = p.head_dim / 2;
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    double sine, cosine;
    sincos(static_cast<double>(p.position_begin + row) * p.inv_freq[i], &sine,
           &cosine);
    sines[i] = static_cast<float>(sine);
    cosines[i] = static_cast<float>(cosine);
  }
  __syncthreads();

  const int num_heads = p.num_q_heads + 2 * p.num_kv_heads;
  const int first_v = p.num_q_heads + p.num_kv_heads;
  const float* x = p.qkv + row * num_heads * p.head_dim;
  const int per_head = half / kVector;
  for (int item = threadIdx.x; item < num_heads * per_head;
       item += blockDim.x) {
    const int head = item / per_head;
    const int i = item % per_head * kVector;
    float a[kVector], b[kVector];
    Load8(x + head * p.head_dim + i, a);
    Load8(x + head * p.head_dim + half + i, b);
    if (head < first_v) {
      float c[kVector], s[kVector];
      Load8(cosines + i, c);
      Load8(sines + i, s);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float low = a[j] * c[j] - b[j] * s[j];
        b[j] = b[j] * c[j] + a[j] * s[j];
        a[j] = low;
      }
    }
    __nv_bfloat16* out;
    if (head < p.num_q_heads) {
      out = params.q + (row * p.num_q_heads + head) * p.head_dim;
    } else {
      const bool is_v = head >= first_v;
      const int kv_head = head - (is_v ? first_v : p.num_q_heads);
      out = (is_v ? params.v : params.k) + kv_head * p.stride_kv_head +
            row * p.head_dim;
    }
    Store8(a, out + i);
    Store8(b, out + half + i);
  }
}

__global__ void SwiGluKernel(const __nv_bfloat16* gate_up, __nv_bfloat16* out,
                             int64_t vectors, int vectors_per_row) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= vectors) return;
  const int64_t row = index / vectors_per_row;
  const int64_t column = (index - row * vectors_per_row) * kVector;
  const int64_t columns = int64_t{vectors_per_row} * kVector;
  const __nv_bfloat16* in = gate_up + row * 2 * columns + column;
  float gate[kVector], up[kVector];
  Load8(in, gate);
  Load8(in + columns, up);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    // exp overflows to infinity below -88, where x / infinity is 0: right.
    gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
  }
  Store8(gate, out + row * columns + column);
}

absl::Status CheckSize(absl::string_view op, absl::string_view field,
                       int64_t value, int64_t unit, int64_t max) {
  if (value >= 1 && value <= max && value % unit == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", field, " is ", value,
                                                 ", must be a multiple of ",
                                                 unit, " in 1 .. ", max));
}

constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxColumns = int64_t{1} << 24;

absl::Status CheckShape(absl::string_view op, int64_t rows, int64_t columns) {
  OVERTURE_RETURN_IF_ERROR(CheckSize(op, "rows", rows, 1, kMaxRows));
  return CheckSize(op, "columns", columns, kVector, kMaxColumns);
}

unsigned FlatBlocks(int64_t vectors) {
  return static_cast<unsigned>((vectors + kFlatThreads - 1) / kFlatThreads);
}

}  // namespace

absl::Status LaunchEmbed(const EmbedParams& params, void* stream) {
  OVERTURE_RETURN_IF_ERROR(CheckShape("embed", params.rows, params.columns));
  const int64_t per_row = params.columns / kVector;
  EmbedKernel<<<FlatBlocks(params.rows * per_row), kFlatThreads, 0,
                static_cast<cudaStream_t>(stream)>>>(
      params.tokens, static_cast<const __nv_bfloat16*>(params.table),
      params.residual, params.rows * per_row, static_cast<int>(per_row));
  return CudaLaunchStatus("EmbedKernel");
}

absl::Status LaunchRmsNorm(const RmsNormParams& params, void* stream) {
  OVERTURE_RETURN_IF_ERROR(CheckShape("rms norm", params.rows, params.columns));
  RmsNormKernel<<<static_cast<unsigned>(params.rows), kRowThreads, 0,
                  static_cast<cudaStream_t>(stream)>>>(
      params.x, params.weight, static_cast<__nv_bfloat16*>(params.out),
      params.eps, params.columns);
  return CudaLaunchStatus("RmsNormKernel");
}

absl::Status LaunchRopeKv(const RopeKvParams& params, void* stream) {
  OVERTURE_RETURN_IF_ERROR(CheckSize("rope", "rows", params.rows, 1, kMaxRows));
  OVERTURE_RETURN_IF_ERROR(CheckSize("rope", "head_dim", params.head_dim,
                                     2 * kVector, 2 * kMaxHalf));
  OVERTURE_RETURN_IF_ERROR(
      CheckSize("rope", "num_q_heads", params.num_q_heads, 1, kMaxGrid));
  OVERTURE_RETURN_IF_ERROR(
      CheckSize("rope", "num_kv_heads", params.num_kv_heads, 1, kMaxGrid));
  OVERTURE_RETURN_IF_ERROR(CheckSize("rope", "stride_kv_head",
                                     params.stride_kv_head, kVector,
                                     int64_t{1} << 60));
  constexpr int kThreads = 128;
  RopeKvKernel<<<static_cast<unsigned>(params.rows), kThreads, 0,
                 static_cast<cudaStream_t>(stream)>>>(
      {.p = params,
       .q = static_cast<__nv_bfloat16*>(params.q),
       .k = static_cast<__nv_bfloat16*>(params.k),
       .v = static_cast<__nv_bfloat16*>(params.v)});
  return CudaLaunchStatus("RopeKvKernel");
}

absl::Status LaunchSwiGlu(const SwiGluParams& params, void* stream) {
  OVERTURE_RETURN_IF_ERROR(CheckShape("swiglu", params.rows, params.columns));
  const int64_t per_row = params.columns / kVector;
  SwiGluKernel<<<FlatBlocks(params.rows * per_row), kFlatThreads, 0,
                 static_cast<cudaStream_t>(stream)>>>(
      static_cast<const __nv_bfloat16*>(params.gate_up),
      static_cast<__nv_bfloat16*>(params.out), params.rows * per_row,
      static_cast<int>(per_row));
  return CudaLaunchStatus("SwiGluKernel");
}

}  // namespace overture::kernels
