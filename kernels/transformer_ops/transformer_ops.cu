#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/row_block.cuh"
#include "kernels/transformer_ops/transformer_ops.h"

namespace overture::kernels {
namespace {

constexpr int kFlatThreads = 256;    // of element-wise kernels
constexpr int kMaxHalf = 128;        // of head_dim, in shared memory
constexpr int64_t kMaxGrid = 65535;  // y and z
// Vectors of a row that a norm's thread keeps, in fp32: rows of up to 32,768.
constexpr int kNormVectors = 4;
// Those of a SwiGLU's thread, in bf16: rows of up to 65,536. Four where they
// do: 149 us instead of 238 for 8,192 rows of 14,336, the rate of a plain copy.
constexpr int kFewVectors = 4;
constexpr int kManyVectors = 8;

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

// One row per block, read once.
template <bool kCodes>
__global__ void __launch_bounds__(kMaxRowThreads)
    RmsNormKernel(const float* x, const float* weight, void* out,
                  float* out_scales, double eps, int64_t columns) {
  const float* from = x + blockIdx.x * columns;
  float row[kNormVectors][kVector] = {};
#pragma unroll
  for (int v = 0; v < kNormVectors; ++v) {
    const int64_t c = (int64_t{v} * blockDim.x + threadIdx.x) * kVector;
    if (c < columns) Load8(from + c, row[v]);
  }
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kNormVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += row[v][i] * row[v][i];
  }
  squares = BlockReduce(squares, [](float a, float b) { return a + b; });
  const double mean = double{squares} / columns;
  const float scale = static_cast<float>(1.0 / sqrt(mean + eps));
  Bf16x8 rounded[kNormVectors];
#pragma unroll
  for (int v = 0; v < kNormVectors; ++v) {
    const int64_t c = (int64_t{v} * blockDim.x + threadIdx.x) * kVector;
    float weights[kVector] = {};
    if (c < columns) Load8(weight + c, weights);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      row[v][i] = row[v][i] * scale * weights[i];
    rounded[v] = Round8(row[v]);
    if (!kCodes && c < columns) {
      auto* to = static_cast<__nv_bfloat16*>(out) + blockIdx.x * columns;
      *reinterpret_cast<Bf16x8*>(to + c) = rounded[v];
    }
  }
  if constexpr (kCodes) {
    StoreRowAsCodes(rounded, columns,
                    static_cast<uint8_t*>(out) + blockIdx.x * columns,
                    out_scales + blockIdx.x);
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

// exp and the division are the fast ones: within 2^-17, far below the rounding
// to bf16, where exact ones would hold the kernel back. Where exp overflows,
// below -88, x / infinity is 0: right.
__device__ float SwiGlu(float gate, float up) {
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

// One vector of a row; `gate` points to that of the gate, up lies `columns`
// further.
__device__ Bf16x8 SwiGlu8(const __nv_bfloat16* gate, int64_t columns) {
  Bf16x8 gates = *reinterpret_cast<const Bf16x8*>(gate);
  const Bf16x8 ups = *reinterpret_cast<const Bf16x8*>(gate + columns);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const float2 g = __bfloat1622float2(gates.pairs[i]);
    const float2 u = __bfloat1622float2(ups.pairs[i]);
    gates.pairs[i] = __floats2bfloat162_rn(SwiGlu(g.x, u.x), SwiGlu(g.y, u.y));
  }
  return gates;
}

// One vector of one row per thread.
__global__ void SwiGluKernel(const __nv_bfloat16* gate_up, __nv_bfloat16* out,
                             int64_t vectors, int vectors_per_row) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= vectors) return;
  const int64_t row = index / vectors_per_row;
  const int64_t column = (index - row * vectors_per_row) * kVector;
  const int64_t columns = int64_t{vectors_per_row} * kVector;
  *reinterpret_cast<Bf16x8*>(out + row * columns + column) =
      SwiGlu8(gate_up + row * 2 * columns + column, columns);
}

// One row per block.
template <int kVectors>
__global__ void __launch_bounds__(kMaxRowThreads)
    SwiGluCodesKernel(const __nv_bfloat16* gate_up, uint8_t* out,
                      float* out_scales, int64_t columns) {
  const __nv_bfloat16* gate = gate_up + blockIdx.x * 2 * columns;
  Bf16x8 row[kVectors] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t c = (int64_t{v} * blockDim.x + threadIdx.x) * kVector;
    if (c < columns) row[v] = SwiGlu8(gate + c, columns);
  }
  StoreRowAsCodes(row, columns, out + blockIdx.x * columns,
                  out_scales + blockIdx.x);
}

absl::Status CheckSize(absl::string_view op, absl::string_view field,
                       int64_t value, int64_t unit, int64_t max) {
  if (value >= 1 && value <= max && value % unit == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", field, " is ", value,
                                                 ", must be a multiple of ",
                                                 unit, " in 1 .. ", max));
}

constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;

absl::Status CheckShape(absl::string_view op, int64_t rows, int64_t columns,
                        int64_t max_columns) {
  OVERTURE_RETURN_IF_ERROR(CheckSize(op, "rows", rows, 1, kMaxRows));
  return CheckSize(op, "columns", columns, kVector, max_columns);
}

unsigned FlatBlocks(int64_t vectors) {
  return static_cast<unsigned>((vectors + kFlatThreads - 1) / kFlatThreads);
}

}  // namespace

absl::Status LaunchEmbed(const EmbedParams& params, void* stream) {
  OVERTURE_RETURN_IF_ERROR(
      CheckShape("embed", params.rows, params.columns, int64_t{1} << 24));
  const int64_t per_row = params.columns / kVector;
  EmbedKernel<<<FlatBlocks(params.rows * per_row), kFlatThreads, 0,
                static_cast<cudaStream_t>(stream)>>>(
      params.tokens, static_cast<const __nv_bfloat16*>(params.table),
      params.residual, params.rows * per_row, static_cast<int>(per_row));
  return CudaLaunchStatus("EmbedKernel");
}

absl::Status LaunchRmsNorm(const RmsNormParams& params, void* stream) {
  OVERTURE_RETURN_IF_ERROR(CheckShape("rms norm", params.rows, params.columns,
                                      MaxColumns(kNormVectors)));
  const auto kernel =
      params.out_scales != nullptr ? RmsNormKernel<true> : RmsNormKernel<false>;
  kernel<<<static_cast<unsigned>(params.rows),
           RowThreads(params.columns, kNormVectors), 0,
           static_cast<cudaStream_t>(stream)>>>(params.x, params.weight,
                                                params.out, params.out_scales,
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
  constexpr int kThreads = 256;  // 4% faster than 128
  RopeKvKernel<<<static_cast<unsigned>(params.rows), kThreads, 0,
                 static_cast<cudaStream_t>(stream)>>>(
      {.p = params,
       .q = static_cast<__nv_bfloat16*>(params.q),
       .k = static_cast<__nv_bfloat16*>(params.k),
       .v = static_cast<__nv_bfloat16*>(params.v)});
  return CudaLaunchStatus("RopeKvKernel");
}

absl::Status LaunchSwiGlu(const SwiGluParams& params, void* stream) {
  OVERTURE_RETURN_IF_ERROR(CheckShape("swiglu", params.rows, params.columns,
                                      MaxColumns(kManyVectors)));
  const auto* gate_up = static_cast<const __nv_bfloat16*>(params.gate_up);
  if (params.out_scales == nullptr) {
    const int64_t per_row = params.columns / kVector;
    SwiGluKernel<<<FlatBlocks(params.rows * per_row), kFlatThreads, 0,
                   static_cast<cudaStream_t>(stream)>>>(
        gate_up, static_cast<__nv_bfloat16*>(params.out), params.rows * per_row,
        static_cast<int>(per_row));
    return CudaLaunchStatus("SwiGluKernel");
  }
  const bool few = params.columns <= MaxColumns(kFewVectors);
  const auto kernel =
      few ? SwiGluCodesKernel<kFewVectors> : SwiGluCodesKernel<kManyVectors>;
  kernel<<<static_cast<unsigned>(params.rows),
           RowThreads(params.columns, few ? kFewVectors : kManyVectors), 0,
           static_cast<cudaStream_t>(stream)>>>(
      gate_up, static_cast<uint8_t*>(params.out), params.out_scales,
      params.columns);
  return CudaLaunchStatus("SwiGluCodesKernel");
}

}  // namespace overture::kernels
