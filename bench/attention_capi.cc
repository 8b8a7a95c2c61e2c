// The GPU attention behind one C function, for bench/attention_gpu.py, which
// times it beside PyTorch's in the same process.
#include "bench/attention_capi.h"

#include "kernels/sparse_attention/launch.h"

extern "C" {

// 0, or 1 with the reason on standard error. `lse` may be null.
int OvertureAttention(const OvertureAttentionShape* shape,
                      const OvertureAttentionPlan* plan, const void* q,
                      const void* k, const void* v, void* o, float* lse,
                      void* stream) {
  using overture::kernels::AttentionKernel;
  using overture::kernels::kMeanBlockKeys;
  auto params = AttentionParams(*shape, q, k, v, o, lse);
  params.k_means = plan->k_means;
  params.v_means = plan->v_means;
  params.stride_mean_row = shape->head_dim;
  params.stride_mean_head = shape->kv_len / kMeanBlockKeys * shape->head_dim;
  const auto device_plan = DevicePlan(*shape, *plan);
  return Report(shape->sm80
                    ? overture::kernels::LaunchSparseAttentionWith(
                          AttentionKernel::kSm80, params, device_plan, stream)
                    : overture::kernels::LaunchSparseAttention(
                          params, device_plan, stream));
}

}  // extern "C"
