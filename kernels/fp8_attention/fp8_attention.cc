#include "kernels/fp8_attention/fp8_attention.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/fp8_attention/launch.h"
#include "kernels/sparse_attention/launch.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace overture::kernels {

absl::Status SupportsFp8Attention(const SparseAttentionParams& params) {
  OVERTURE_RETURN_IF_ERROR(SupportsSparseAttention(params));
  if (params.head_dim != 128) {
    return absl::UnimplementedError(absl::StrCat(
        "FP8 attention takes head dim 128, got ", params.head_dim));
  }
  OVERTURE_ASSIGN_OR_RETURN(const AttentionKernel kernel,
                            AttentionKernelOfDevice());
  if (kernel != AttentionKernel::kSm90) {
    return absl::UnimplementedError(
        "FP8 attention takes compute capability 9.0");
  }
  return absl::OkStatus();
}

absl::Status LaunchFp8Attention(const SparseAttentionParams& params,
                                const DeviceTilePlan& plan, const Fp8Kv& kv,
                                void* scratch, void* stream) {
  OVERTURE_RETURN_IF_ERROR(SupportsFp8Attention(params));
  OVERTURE_RETURN_IF_ERROR(SupportsQueryTiles(params, plan));
  if (plan.columns != nullptr || plan.mean_blocks != nullptr) {
    return absl::UnimplementedError(
        "FP8 attention takes plans of key tiles alone, this one lists single "
        "columns or blocks that enter as their means");
  }
  if (plan.kv_len > kv.num_tiles * fp8::kTileKeys) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan has ", plan.kv_len, " keys, room for ",
                     kv.num_tiles * fp8::kTileKeys, " is quantised"));
  }
  return LaunchFp8AttentionSm90(params, plan, kv, scratch, stream);
}

}  // namespace overture::kernels
