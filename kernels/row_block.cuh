// A row of values spread over the threads of one block, eight neighbours (16
// bytes of bf16) to a vector: vector v of thread t is the row's vector
// v * blockDim.x + t, so that a warp's accesses touch whole lines.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/fp8/quantize_rows_cpu.h"

namespace overture::kernels {

inline constexpr int kVector = 8;
inline constexpr int kWarp = 32;  // lanes
inline constexpr int kMaxRowThreads = 1024;

struct alignas(16) Bf16x8 {
  __nv_bfloat162 pairs[kVector / 2];
};

__device__ inline void Load8(const float* from, float* to) {
  const float4 a = reinterpret_cast<const float4*>(from)[0];
  const float4 b = reinterpret_cast<const float4*>(from)[1];
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
  to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

__device__ inline void Load8(const __nv_bfloat16* from, float* to) {
  const Bf16x8 v = *reinterpret_cast<const Bf16x8*>(from);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const float2 pair = __bfloat1622float2(v.pairs[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

__device__ inline void Store8(const float* from, float* to) {
  reinterpret_cast<float4*>(to)[0] = {from[0], from[1], from[2], from[3]};
  reinterpret_cast<float4*>(to)[1] = {from[4], from[5], from[6], from[7]};
}

__device__ inline Bf16x8 Round8(const float* from) {
  Bf16x8 v;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    v.pairs[i] = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
  }
  return v;
}

__device__ inline void Store8(const float* from, __nv_bfloat16* to) {
  *reinterpret_cast<Bf16x8*>(to) = Round8(from);
}

// `combine` over the block's values, the same in every thread and on every run.
// A kernel that calls an instance again has a barrier in between: its shared
// memory is not guarded.
template <typename T, typename Combine>
__device__ T BlockReduce(T value, Combine combine) {
  __shared__ T partial[kMaxRowThreads / kWarp];
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lane));
  }
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  T result = partial[0];
  for (int warp = 1; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) {
    result = combine(result, partial[warp]);
  }
  return result;
}

// Writes the block's row as e4m3 codes with its scale, as QuantizeRowsCpu does,
// bit for bit. Vectors past the row's end are zero.
template <int kVectors>
__device__ void StoreRowAsCodes(const Bf16x8 (&row)[kVectors], int64_t columns,
                                uint8_t* codes, float* scale) {
  // Bits of magnitudes order as they do, with NaN above infinity.
  constexpr uint32_t kMagnitudes = 0x7fff7fffu;
  uint32_t bits = 0;  // two maxima
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      const auto pair = reinterpret_cast<const uint32_t&>(row[v].pairs[i]);
      bits = __vmaxu2(bits, pair & kMagnitudes);
    }
  }
  bits = BlockReduce(
      bits, [](uint32_t a, uint32_t b) -> uint32_t { return __vmaxu2(a, b); });
  const float largest = __uint_as_float(
      max(max(bits << 16, bits & 0xffff0000u), __float_as_uint(kMinRowMax)));
  const float inverse = __fdiv_rn(kE4M3Max, largest);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t c = (int64_t{v} * blockDim.x + threadIdx.x) * kVector;
    if (c >= columns) break;
    ushort4 packed;
    auto* pairs = reinterpret_cast<__nv_fp8x2_storage_t*>(&packed);
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      float2 pair = __bfloat1622float2(row[v].pairs[i]);
      pair.x = __fmul_rn(pair.x, inverse);
      pair.y = __fmul_rn(pair.y, inverse);
      pairs[i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    }
    *reinterpret_cast<ushort4*>(codes + c) = packed;
  }
  if (threadIdx.x == 0) *scale = __fdiv_rn(largest, kE4M3Max);
}

// Threads of a block whose threads hold `vectors` vectors of a row each.
inline unsigned RowThreads(int64_t columns, int vectors) {
  const int64_t per_warp = int64_t{kWarp} * vectors * kVector;
  return static_cast<unsigned>((columns + per_warp - 1) / per_warp * kWarp);
}

// The longest row that such a block takes.
constexpr int64_t MaxColumns(int vectors) {
  return int64_t{kMaxRowThreads} * vectors * kVector;
}

}  // namespace overture::kernels
