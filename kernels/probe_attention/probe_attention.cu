#include <cuda_runtime.h>

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/probe_attention/probe_attention.h"
#include "kernels/probe_attention/row_lse.cuh"
#include "kernels/probe_attention/sm90/launch.cuh"
#include "kernels/probe_attention/sums.cuh"

namespace overture::kernels {
namespace {

using probe::BlockParams;

constexpr int kMaxDim = 128;
constexpr int64_t kMaxKv = int64_t{1} << 30;
// Runs of keys that a head is cut into. More serve no model: a device has 132
// blocks, and the heads of a KV head share one.
constexpr int64_t kMaxRuns = 256;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t MaxRuns(int64_t kv_len) {
  return std::min(CeilDiv(kv_len, probe::kStageKeys), kMaxRuns);
}

absl::Status Check(const ProbeAttentionParams& p) {
  OVERTURE_RETURN_IF_ERROR(CheckProbeAttention(p));
  if (p.dtype != DType::kBF16) {
    return absl::UnimplementedError(
        absl::StrCat("GPU probe attention takes bf16, got ", Name(p.dtype)));
  }
  if (p.head_dim > kMaxDim || p.head_dim % 16 != 0) {
    return absl::UnimplementedError(absl::StrCat(
        "GPU probe attention takes a head dim that is a multiple of 16 up to ",
        kMaxDim, ", got ", p.head_dim));
  }
  if (p.kv_len > kMaxKv) {
    return BadProbeField("kv_len", p.kv_len, absl::StrCat("1 .. ", kMaxKv));
  }
  for (const void* pointer : {p.q, p.k}) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (address % 16 != 0) {
      return BadProbeField("address of q or k modulo 16", address % 16, "0");
    }
  }
  for (const int64_t stride :
       {p.stride_q_row, p.stride_q_head, p.stride_k_row, p.stride_k_head}) {
    if (stride % 8 != 0) {
      return BadProbeField("a stride", stride, "a multiple of 8 elements");
    }
  }
  return absl::OkStatus();
}

struct Device {
  int num_sms = 0;
  int shared_bytes = 0;  // that a block can have
  bool is_sm90 = false;  // whose code runs on 9.0 alone, not on what came after
};

absl::StatusOr<Device> CurrentDevice() {
  Device device;
  int index = 0;
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaGetDevice(&index));
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(
      &device.num_sms, cudaDevAttrMultiProcessorCount, index));
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(
      &device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
  int major = 0, minor = 0;
  OVERTURE_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  OVERTURE_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  device.is_sm90 = major == 9 && minor == 0;
  return device;
}

template <typename Kernel>
absl::Status Launch(const char* name, Kernel* kernel, dim3 grid, int threads,
                    int shared_bytes, const BlockParams& p,
                    cudaStream_t stream) {
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  kernel<<<grid, threads, shared_bytes, stream>>>(p);
  return CudaLaunchStatus(name);
}

// Bytes of shared memory of one run in the second, larger pass.
int RunBytes(int steps, int num_heads) {
  const int stages =
      probe::kStages * probe::kStageKeys * probe::KeyStride(steps) * 2;
  return stages + num_heads * probe::kHalves * probe::kSumsFloats * 4;
}

// log2 of the rows' sums, between the passes.
absl::Status LaunchRowLse(const BlockParams& p, int num_kv_heads,
                          cudaStream_t stream) {
  return Launch("RowLseKernel", &probe::RowLseKernel,
                dim3(p.num_heads, num_kv_heads), probe::kLseThreads, 0, p,
                stream);
}

absl::Status LaunchBlockSm90(BlockParams p, int num_kv_heads,
                             const Device& device, cudaStream_t stream) {
  probe::sm90::CutRuns(num_kv_heads, device.num_sms, kMaxRuns, p);
  OVERTURE_RETURN_IF_ERROR(
      probe::sm90::LaunchRowParts(p, num_kv_heads, stream));
  OVERTURE_RETURN_IF_ERROR(LaunchRowLse(p, num_kv_heads, stream));
  return probe::sm90::LaunchSums(p, num_kv_heads, stream);
}

template <int kSteps>
absl::Status LaunchBlockSm80(BlockParams p, int num_kv_heads,
                             const Device& device, cudaStream_t stream) {
  // Full blocks, on all multiprocessors once.
  const int run_bytes = RunBytes(kSteps, p.num_heads);
  const int run_warps = p.num_heads * probe::kHalves;
  p.runs =
      std::min(probe::kMaxWarps / run_warps, device.shared_bytes / run_bytes);
  const int64_t keys = int64_t{p.last} + 1;
  const int64_t stages = CeilDiv(keys, probe::kStageKeys);
  const int64_t blocks =
      std::clamp<int64_t>(device.num_sms / num_kv_heads, 1, kMaxRuns / p.runs);
  const int64_t run_stages = CeilDiv(stages, blocks * p.runs);
  p.run_keys = static_cast<int32_t>(run_stages * probe::kStageKeys);
  p.num_runs = static_cast<int32_t>(CeilDiv(stages, run_stages));
  const dim3 grid(CeilDiv(p.num_runs, p.runs), num_kv_heads);
  const int threads = p.runs * run_warps * probe::kWarp;
  const int shared_bytes = p.runs * run_bytes;

  OVERTURE_RETURN_IF_ERROR(Launch("RowPartsKernel",
                                  &probe::RowPartsKernel<kSteps>, grid, threads,
                                  shared_bytes, p, stream));
  OVERTURE_RETURN_IF_ERROR(LaunchRowLse(p, num_kv_heads, stream));
  auto* sums = p.window_row < probe::kRows ? &probe::SumsKernel<kSteps, true>
                                           : &probe::SumsKernel<kSteps, false>;
  return Launch("SumsKernel", sums, grid, threads, shared_bytes, p, stream);
}

}  // namespace

int64_t ProbeScratchBytes(int64_t kv_len, int32_t num_heads) {
  return num_heads * probe::kRows *
         (MaxRuns(kv_len) * int64_t{sizeof(float2)} + int64_t{sizeof(float)});
}

absl::Status LaunchProbeAttention(const ProbeAttentionParams& params,
                                  void* scratch, int64_t scratch_bytes,
                                  void* stream) {
  OVERTURE_RETURN_IF_ERROR(Check(params));
  OVERTURE_ASSIGN_OR_RETURN(const Device device, CurrentDevice());
  const int group = params.num_q_heads / params.num_kv_heads;
  const ProbeKernel kernel = device.is_sm90 && group >= probe::sm90::kMinHeads
                                 ? ProbeKernel::kSm90
                                 : ProbeKernel::kSm80;
  return LaunchProbeAttentionWith(kernel, params, scratch, scratch_bytes,
                                  stream);
}

absl::Status LaunchProbeAttentionWith(ProbeKernel kernel,
                                      const ProbeAttentionParams& params,
                                      void* scratch, int64_t scratch_bytes,
                                      void* stream) {
  OVERTURE_RETURN_IF_ERROR(Check(params));
  const int64_t needed = ProbeScratchBytes(params.kv_len, params.num_q_heads);
  if (scratch_bytes < needed) {
    return absl::ResourceExhaustedError(
        absl::StrCat("probe attention: scratch of ", scratch_bytes,
                     " bytes, needs ", needed));
  }
  OVERTURE_ASSIGN_OR_RETURN(const Device device, CurrentDevice());
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const int group = params.num_q_heads / params.num_kv_heads;
  BlockParams p = {
      .k = static_cast<const __nv_bfloat16*>(params.k),
      .stride_q_row = params.stride_q_row,
      .stride_q_head = params.stride_q_head,
      .stride_k_row = params.stride_k_row,
      .stride_k_head = params.stride_k_head,
      .head_dim = params.head_dim,
      .group = group,
      .kv_len = static_cast<int32_t>(params.kv_len),
      // Positive, so that a hidden score of -inf stays one.
      .scale_log2 = std::max(
          std::abs(params.scale) * static_cast<float>(M_LOG2E), FLT_MIN),
      .sign = params.scale < 0 ? 0x80008000u : 0,
      .row_parts = static_cast<float2*>(scratch),
      .column_sums = params.column_sums,
      .diagonal_sums = params.diagonal_sums,
      .window_votes = params.window_votes};
  p.row_lse = reinterpret_cast<float*>(
      p.row_parts + params.num_q_heads * probe::kRows * MaxRuns(params.kv_len));

  // Blocks of 64 rows from the last one on, which writes all outputs; the
  // others add to what they see. Heads of a group that share a launch.
  const bool is_sm90 = kernel == ProbeKernel::kSm90;
  const int max_heads =
      is_sm90 ? probe::sm90::kMaxHeads : probe::kMaxWarps / probe::kHalves;
  const int launches = static_cast<int>(CeilDiv(group, max_heads));
  const int heads = static_cast<int>(CeilDiv(group, launches));
  for (int64_t end = params.num_rows; end > 0; end -= probe::kRows) {
    const int64_t begin = end - probe::kRows;
    p.q = static_cast<const __nv_bfloat16*>(params.q) +
          begin * params.stride_q_row;
    p.last = static_cast<int32_t>(params.kv_len - params.num_rows + end - 1);
    p.first_row = static_cast<int32_t>(std::max<int64_t>(-begin, 0));
    p.window_row = probe::kRows;
    if (params.window_votes != nullptr) {
      p.window_row = static_cast<int32_t>(
          std::clamp<int64_t>(params.num_rows - params.window_rows - begin,
                              p.first_row, probe::kRows));
    }
    p.add_sums = end < params.num_rows;
    for (p.first_head = 0; p.first_head < group; p.first_head += heads) {
      p.num_heads = std::min(heads, group - p.first_head);
      p.add_votes = p.add_sums || p.first_head > 0;
      const auto launch = is_sm90                 ? &LaunchBlockSm90
                          : params.head_dim <= 64 ? &LaunchBlockSm80<4>
                          : params.head_dim <= 96 ? &LaunchBlockSm80<6>
                                                  : &LaunchBlockSm80<8>;
      OVERTURE_RETURN_IF_ERROR(
          launch(p, params.num_kv_heads, device, cuda_stream));
    }
  }
  return absl::OkStatus();
}

}  // namespace overture::kernels
