#include <cuda_runtime.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/row_lse/kernel.cuh"
#include "kernels/row_lse/row_lse.h"

namespace overture::kernels {
namespace {

using row_lse::Params;

constexpr int kTakeThreads = 256;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t NumRowBlocks(int32_t num_rows, int32_t num_q_heads,
                     int32_t num_kv_heads) {
  return CeilDiv(int64_t{num_rows} * (num_q_heads / num_kv_heads),
                 row_lse::kRows);
}

absl::Status Check(const RowLseParams& p) {
  OVERTURE_RETURN_IF_ERROR(CheckRowLse(p));
  if (p.dtype != DType::kBF16) {
    return absl::UnimplementedError(
        absl::StrCat("GPU row lse takes bf16, got ", Name(p.dtype)));
  }
  if (p.head_dim != 64 && p.head_dim != 96 && p.head_dim != 128) {
    return absl::UnimplementedError(absl::StrCat(
        "GPU row lse takes head dim 64, 96 or 128, got ", p.head_dim));
  }
  if (p.weights != nullptr) {
    return absl::UnimplementedError("GPU row lse writes no weights");
  }
  for (const void* pointer : {p.q, p.k}) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (address % 16 != 0) {
      return BadRowLseField("address of q or k modulo 16", address % 16, "0");
    }
  }
  for (const int64_t stride :
       {p.stride_q_row, p.stride_q_head, p.stride_k_row, p.stride_k_head}) {
    if (stride % 8 != 0) {
      return BadRowLseField("a stride", stride, "a multiple of 8 elements");
    }
  }
  return absl::OkStatus();
}

template <int kChunks>
absl::Status Launch(const Params& p, dim3 grid, cudaStream_t stream) {
  row_lse::PartsKernel<kChunks><<<grid, row_lse::kThreads, 0, stream>>>(p);
  OVERTURE_RETURN_IF_ERROR(CudaLaunchStatus("row_lse::PartsKernel"));
  row_lse::
      MergeKernel<<<dim3(grid.y, grid.z), row_lse::kMergeThreads, 0, stream>>>(
          p);
  return CudaLaunchStatus("row_lse::MergeKernel");
}

struct TakeRows {
  const uint4* q;
  const float* lse;
  int64_t num_rows;
  int64_t row_vectors;
  int32_t num_q_heads;
  uint4* out_q;
  float* out_lse;
  int64_t rows[kMaxLseRows];
};

// A block per row.
__global__ void __launch_bounds__(kTakeThreads)
    TakeRowsKernel(const __grid_constant__ TakeRows p) {
  const int64_t row = p.rows[blockIdx.x];
  for (int64_t i = threadIdx.x; i < p.row_vectors; i += kTakeThreads) {
    p.out_q[blockIdx.x * p.row_vectors + i] = p.q[row * p.row_vectors + i];
  }
  if (p.lse == nullptr) return;
  for (int head = threadIdx.x; head < p.num_q_heads; head += kTakeThreads) {
    p.out_lse[blockIdx.x * p.num_q_heads + head] =
        p.lse[head * p.num_rows + row];
  }
}

}  // namespace

int64_t RowLseScratchBytes(int32_t num_rows, int32_t num_q_heads,
                           int32_t num_kv_heads) {
  const int64_t blocks =
      NumRowBlocks(num_rows, num_q_heads, num_kv_heads) * num_kv_heads;
  return std::max<int64_t>(blocks, row_lse::kWarpsInAll) * row_lse::kRows *
         int64_t{sizeof(float2)};
}

absl::Status LaunchRowLse(const RowLseParams& params, void* scratch,
                          int64_t scratch_bytes, void* stream) {
  OVERTURE_RETURN_IF_ERROR(Check(params));
  const int64_t needed = RowLseScratchBytes(
      params.num_rows(), params.num_q_heads, params.num_kv_heads);
  if (scratch_bytes < needed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "row lse: scratch has ", scratch_bytes, " bytes, needs ", needed));
  }
  const int64_t row_blocks =
      NumRowBlocks(params.num_rows(), params.num_q_heads, params.num_kv_heads);
  const int64_t keys =
      *std::max_element(params.positions.begin(), params.positions.end()) + 1;
  const int64_t units = CeilDiv(keys, row_lse::kUnitKeys);
  // As many runs of keys, a warp each, as fill a device.
  const int64_t run_units = CeilDiv(
      units,
      std::clamp<int64_t>(
          row_lse::kWarpsInAll / (params.num_kv_heads * row_blocks), 1, units));
  Params p = {.q = static_cast<const __nv_bfloat16*>(params.q),
              .k = static_cast<const __nv_bfloat16*>(params.k),
              .stride_q_row = params.stride_q_row,
              .stride_q_head = params.stride_q_head,
              .stride_k_row = params.stride_k_row,
              .stride_k_head = params.stride_k_head,
              .group = params.num_q_heads / params.num_kv_heads,
              .num_q_heads = params.num_q_heads,
              .num_rows = params.rows_per_kv_head(),
              .num_runs = static_cast<int32_t>(CeilDiv(units, run_units)),
              .run_keys = static_cast<int32_t>(run_units * row_lse::kUnitKeys),
              .last_key = static_cast<int32_t>(keys - 1),
              .scale_log2 = params.scale * row_lse::kLog2E,
              .parts = static_cast<float2*>(scratch),
              .lse = params.lse};
  std::copy(params.positions.begin(), params.positions.end(), p.positions);
  const dim3 grid(CeilDiv(p.num_runs, row_lse::kWarps), params.num_kv_heads,
                  row_blocks);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  switch (params.head_dim) {
    case 64:
      return Launch<2>(p, grid, cuda_stream);
    case 96:
      return Launch<3>(p, grid, cuda_stream);
    default:
      return Launch<4>(p, grid, cuda_stream);
  }
}

absl::Status LaunchTakeRows(const TakeRowsParams& params, void* stream) {
  if (params.rows.empty()) return absl::OkStatus();
  if (params.rows.size() > kMaxLseRows) {
    return BadRowLseField("rows", static_cast<int64_t>(params.rows.size()),
                          absl::StrCat("at most ", kMaxLseRows));
  }
  constexpr int64_t kVector = sizeof(uint4) / sizeof(__nv_bfloat16);
  if (params.row_elements % kVector != 0) {
    return BadRowLseField("row_elements", params.row_elements,
                          absl::StrCat("a multiple of ", kVector));
  }
  TakeRows p = {.q = static_cast<const uint4*>(params.q),
                .lse = params.lse,
                .num_rows = params.num_rows,
                .row_vectors = params.row_elements / kVector,
                .num_q_heads = params.num_q_heads,
                .out_q = static_cast<uint4*>(params.out_q),
                .out_lse = params.out_lse};
  for (size_t i = 0; i < params.rows.size(); ++i) {
    if (params.rows[i] < 0 || params.rows[i] >= params.num_rows) {
      return BadRowLseField("a row", params.rows[i],
                            absl::StrCat("in [0, ", params.num_rows, ")"));
    }
    p.rows[i] = params.rows[i];
  }
  TakeRowsKernel<<<static_cast<unsigned>(params.rows.size()), kTakeThreads, 0,
                   static_cast<cudaStream_t>(stream)>>>(p);
  return CudaLaunchStatus("TakeRowsKernel");
}

}  // namespace overture::kernels
