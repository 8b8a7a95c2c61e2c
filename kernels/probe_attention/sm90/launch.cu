#include <algorithm>

#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/probe_attention/sm90/launch.cuh"
#include "kernels/probe_attention/sm90/row_parts.cuh"
#include "kernels/probe_attention/sm90/sums.cuh"
#include "kernels/ptx/tensor_map.h"

namespace overture::kernels::probe::sm90 {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <typename Kernel>
absl::Status Launch(const char* name, Kernel* kernel, int shared_bytes,
                    const BlockParams& p, int num_kv_heads,
                    cudaStream_t stream) {
  KernelParams params = {.block = p};
  // With one KV head nothing depends on how far the next one is.
  const int64_t stride_head =
      num_kv_heads > 1 ? p.stride_k_head : p.stride_k_row;
  OVERTURE_RETURN_IF_ERROR(MakeTensorMap(p.k,
                                         {{p.head_dim, 1, kPanel},
                                          {p.kv_len, p.stride_k_row, kUnitKeys},
                                          {num_kv_heads, stride_head, 1}},
                                         &params.k));
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  const dim3 grid(CeilDiv(p.num_runs, kRuns), num_kv_heads);
  kernel<<<grid, Threads(p.num_heads), shared_bytes, stream>>>(params);
  return CudaLaunchStatus(name);
}

template <int kSteps>
absl::Status LaunchSumsOf(const BlockParams& p, int num_kv_heads,
                          cudaStream_t stream) {
  auto* kernel = p.window_row < kRows ? &SumsKernel<kSteps, true>
                                      : &SumsKernel<kSteps, false>;
  return Launch("probe SumsKernel", kernel, sizeof(SumsShared<kSteps>), p,
                num_kv_heads, stream);
}

template <int kSteps>
absl::Status LaunchRowPartsOf(const BlockParams& p, int num_kv_heads,
                              cudaStream_t stream) {
  return Launch("probe RowPartsKernel", &RowPartsKernel<kSteps>,
                sizeof(Shared<kSteps>), p, num_kv_heads, stream);
}

}  // namespace

void CutRuns(int num_kv_heads, int num_sms, int64_t max_runs, BlockParams& p) {
  const int64_t steps = CeilDiv(int64_t{p.last} + 1, kStepKeys);
  const int64_t blocks =
      std::clamp<int64_t>(num_sms / num_kv_heads, 1, max_runs / kRuns);
  const int64_t run_steps = CeilDiv(steps, blocks * kRuns);
  p.runs = kRuns;
  p.run_keys = static_cast<int32_t>(run_steps * kStepKeys);
  p.num_runs = static_cast<int32_t>(CeilDiv(steps, run_steps));
}

absl::Status LaunchRowParts(const BlockParams& p, int num_kv_heads,
                            cudaStream_t stream) {
  const auto launch = p.head_dim <= 64   ? &LaunchRowPartsOf<4>
                      : p.head_dim <= 96 ? &LaunchRowPartsOf<6>
                                         : &LaunchRowPartsOf<8>;
  return launch(p, num_kv_heads, stream);
}

absl::Status LaunchSums(const BlockParams& p, int num_kv_heads,
                        cudaStream_t stream) {
  const auto launch = p.head_dim <= 64   ? &LaunchSumsOf<4>
                      : p.head_dim <= 96 ? &LaunchSumsOf<6>
                                         : &LaunchSumsOf<8>;
  return launch(p, num_kv_heads, stream);
}

}  // namespace overture::kernels::probe::sm90
