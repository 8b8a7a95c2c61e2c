#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/fp8_attention/fp8_attention.h"
#include "kernels/fp8_attention/quantize.cuh"
#include "kernels/row_block.cuh"
#include "kernels/sparse_attention/query_tile.cuh"

namespace overture::kernels {
namespace {

constexpr int kThreads = 256;

// Of the bits of a magnitude, which order as magnitudes do, NaN above all.
__device__ __forceinline__ uint32_t Magnitude(float value) {
  return __float_as_uint(value) & 0x7fffffffu;
}

__device__ __forceinline__ uint32_t Larger(uint32_t a, uint32_t b) {
  return max(a, b);
}

struct Scale {
  float scale;    // 2^exponent; NaN if a value is not finite
  float inverse;  // 2^-exponent
  float exponent;
};

__device__ __forceinline__ Scale ScaleFor(uint32_t largest, bool is_v) {
  constexpr fp8::CodeRange kScores = fp8::kScoreCodes;
  constexpr fp8::CodeRange kValues = fp8::kValueCodes;
  if (!fp8::IsFinite(largest)) {
    const float nan = __uint_as_float(0x7fffffffu);
    return {nan, nan, nan};
  }
  const int exponent = is_v ? fp8::ScaleExponent(largest, kValues)
                            : fp8::ScaleExponent(largest, kScores);
  return {__uint_as_float((127 + exponent) << 23),
          __uint_as_float((127 - exponent) << 23),
          static_cast<float>(exponent)};
}

__device__ __forceinline__ uint32_t ToE4M3(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

__device__ __forceinline__ uint32_t ToE4M3x4(const float* values) {
  return ToE4M3(values[0]) | ToE4M3(values[1]) << 8 | ToE4M3(values[2]) << 16 |
         ToE4M3(values[3]) << 24;
}

// Mean of the first keys of one KV head. Sums in double, which holds those of
// ordinary bf16 values without rounding, so that the order does not matter.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads)
    MeanKernel(const __nv_bfloat16* k, int64_t stride_row, int64_t stride_head,
               int num_keys, float* mean) {
  constexpr int kVectors = kHeadDim / kVector;
  constexpr int kLanes = kThreads / kVectors;  // that share a column
  __shared__ double sums[kLanes][kHeadDim];
  const int vector = threadIdx.x % kVectors;
  const int key_lane = threadIdx.x / kVectors;
  if (key_lane < kLanes) {
    double sum[kVector] = {};
    for (int key = key_lane; key < num_keys; key += kLanes) {
      float values[kVector];
      Load8(k + blockIdx.x * stride_head + key * stride_row + vector * kVector,
            values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum[i] += values[i];
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      sums[key_lane][vector * kVector + i] = sum[i];
    }
  }
  __syncthreads();
  for (int dim = threadIdx.x; dim < kHeadDim; dim += kThreads) {
    double sum = 0;
    for (int i = 0; i < kLanes; ++i) sum += sums[i][dim];
    mean[blockIdx.x * kHeadDim + dim] = static_cast<float>(sum / num_keys);
  }
}

// One tile of one KV head per block: x is the tile, y the head.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads)
    QuantizeKvKernel(QuantizeKvParams p, int64_t first_tile) {
  constexpr int kVectors = kHeadDim / kVector;  // of a key
  constexpr int kKeyTile = fp8::KeyTileBytes(kHeadDim);
  constexpr int kValueTile = fp8::ValueTileBytes(kHeadDim);
  constexpr int kItems = (fp8::kTileKeys * kVectors + kThreads - 1) / kThreads;
  __shared__ alignas(16) uint8_t staged[std::max(kKeyTile, kValueTile)];
  const int64_t tile = first_tile + blockIdx.x;
  const int head = blockIdx.y;
  const int64_t first_key = tile * fp8::kTileKeys;
  const int64_t out_tile = head * p.out.num_tiles + tile;
  const auto* k = static_cast<const __nv_bfloat16*>(p.k);
  const auto* v = static_cast<const __nv_bfloat16*>(p.v);
  const float* mean = p.out.mean + head * kHeadDim;

  Scale scales[2];
  for (int is_v = 0; is_v < 2; ++is_v) {
    float values[kItems][kVector];
    uint32_t largest = 0;
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int index = item * kThreads + threadIdx.x;
      const int64_t key = first_key + index / kVectors;
      const int dim = index % kVectors * kVector;
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[item][i] = 0;
      if (index >= fp8::kTileKeys * kVectors || key >= p.kv_len) continue;
      Load8((is_v ? v : k) + head * p.stride_kv_head + key * p.stride_kv_row +
                dim,
            values[item]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (!is_v) values[item][i] -= mean[dim + i];
        largest = max(largest, Magnitude(values[item][i]));
      }
    }
    // Its barrier also ends the last round's reads of `staged`, and the one
    // after the codes are written those of what it shares.
    const Scale scale = ScaleFor(BlockReduce(largest, Larger), is_v != 0);
    scales[is_v] = scale;
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int index = item * kThreads + threadIdx.x;
      if (index >= fp8::kTileKeys * kVectors) continue;
      const int key = index / kVectors;
      const int dim = index % kVectors * kVector;
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[item][i] *= scale.inverse;
      if (is_v) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          staged[fp8::ValueOffset(key, dim + i)] =
              static_cast<uint8_t>(ToE4M3(values[item][i]));
        }
      } else {
        *reinterpret_cast<uint2*>(
            &staged[fp8::KeyOffset(key, dim, kHeadDim)]) = {
            ToE4M3x4(&values[item][0]), ToE4M3x4(&values[item][4])};
      }
    }
    __syncthreads();
    const int bytes = is_v ? kValueTile : kKeyTile;
    uint8_t* out = (is_v ? p.out.v : p.out.k) + out_tile * bytes;
    for (int at = threadIdx.x * 16; at < bytes; at += kThreads * 16) {
      *reinterpret_cast<uint4*>(out + at) =
          *reinterpret_cast<const uint4*>(staged + at);
    }
  }
  if (threadIdx.x == 0) {
    p.out.scales[out_tile] = {scales[0].scale, scales[1].exponent,
                              scales[1].inverse, 0};
  }
}

// One row of a work item per warp: x is 8 rows of a tile, y the item's head.
// Rows that do not exist are zeros.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads)
    QuantizeQueriesKernel(QuantizeQueriesParams p) {
  const int tile_row =
      blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;  // of all tiles
  const int q_tile = tile_row / fp8::kTileRows;
  const int item_row = tile_row % fp8::kTileRows;
  const QueryTile tile(p.plan, blockIdx.y, q_tile);
  const int lane = threadIdx.x % kWarp;
  const int dim = lane * 4;
  const int64_t row = tile.Position(item_row) - p.plan.q_begin;
  float values[4] = {};
  if (row >= 0 && row < p.plan.q_len && dim < kHeadDim) {
    const uint2 raw = *reinterpret_cast<const uint2*>(
        p.q + row * p.stride_row + tile.Head(item_row) * p.stride_head + dim);
    values[0] = __uint_as_float(raw.x << 16);
    values[1] = __uint_as_float(raw.x & 0xffff0000u);
    values[2] = __uint_as_float(raw.y << 16);
    values[3] = __uint_as_float(raw.y & 0xffff0000u);
  }
  uint32_t largest = 0;
  float dot = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[i] *= p.scale_log2;
    largest = max(largest, Magnitude(values[i]));
    if (dim < kHeadDim) {
      dot += values[i] * p.mean[blockIdx.y / p.group * kHeadDim + dim + i];
    }
  }
  const Scale scale = ScaleFor(__reduce_max_sync(~0u, largest), /*is_v=*/false);
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    dot += __shfl_xor_sync(~0u, dot, offset);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] *= scale.inverse;
  const int64_t item = int64_t{blockIdx.y} * p.plan.num_q_tiles + q_tile;
  if (dim < kHeadDim) {
    *reinterpret_cast<uint32_t*>(
        p.out.codes + item * fp8::QueryTileBytes(kHeadDim) +
        fp8::QueryOffset(item_row, dim, kHeadDim)) = ToE4M3x4(values);
  }
  if (lane == 0) {
    p.out.scale[item * fp8::kTileRows + item_row] = scale.scale;
    p.out.offset[item * fp8::kTileRows + item_row] = dot;
  }
}

}  // namespace

absl::Status LaunchQuantizeKv(const QuantizeKvParams& params, void* stream) {
  if (params.head_dim != 128) {
    return absl::UnimplementedError(absl::StrCat(
        "FP8 attention takes head dim 128, got ", params.head_dim));
  }
  OVERTURE_RETURN_IF_ERROR(Validate(params));
  constexpr int kHeadDim = 128;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (params.begin == 0) {
    MeanKernel<kHeadDim><<<params.num_kv_heads, kThreads, 0, cuda_stream>>>(
        static_cast<const __nv_bfloat16*>(params.k), params.stride_kv_row,
        params.stride_kv_head,
        static_cast<int>(std::min<int64_t>(fp8::kMeanKeys, params.kv_len)),
        params.out.mean);
    OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("MeanKernel"));
  }
  const int64_t first_tile = params.begin / fp8::kTileKeys;
  const int64_t end_tile =
      (params.kv_len + fp8::kTileKeys - 1) / fp8::kTileKeys;
  const dim3 grid(static_cast<unsigned>(end_tile - first_tile),
                  params.num_kv_heads);
  QuantizeKvKernel<kHeadDim>
      <<<grid, kThreads, 0, cuda_stream>>>(params, first_tile);
  return CudaLaunchStatus("QuantizeKvKernel");
}

QuantizedQueries QueriesIn(void* scratch, int32_t head_dim, int64_t num_items) {
  auto* at = static_cast<uint8_t*>(scratch);
  QuantizedQueries out = {.codes = at};
  at += num_items * fp8::QueryTileBytes(head_dim);
  out.scale = reinterpret_cast<float*>(at);
  out.offset = out.scale + num_items * fp8::kTileRows;
  return out;
}

absl::Status LaunchQuantizeQueries(const QuantizeQueriesParams& params,
                                   cudaStream_t stream) {
  constexpr int kHeadDim = 128;
  const dim3 grid(static_cast<unsigned>(params.plan.num_q_tiles) *
                      (fp8::kTileRows / (kThreads / kWarp)),
                  params.num_heads);
  QuantizeQueriesKernel<kHeadDim><<<grid, kThreads, 0, stream>>>(params);
  return CudaLaunchStatus("QuantizeQueriesKernel");
}

}  // namespace overture::kernels
