// The FP8 attention behind C functions, beside attention_capi.cc and for the
// same script.
#include <cstdint>

#include "bench/attention_capi.h"
#include "kernels/fp8_attention/fp8_attention.h"

extern "C" {

int64_t OvertureFp8KvBytes(const OvertureAttentionShape* shape) {
  return overture::kernels::Fp8KvBytes(shape->num_kv_heads, shape->head_dim,
                                       shape->kv_len);
}

int64_t OvertureFp8QueryBytes(const OvertureAttentionShape* shape) {
  return overture::kernels::Fp8QueryBytes(shape->num_q_heads, shape->head_dim,
                                          shape->q_len);
}

// `kv` has OvertureFp8KvBytes.
int OvertureFp8QuantizeKv(const OvertureAttentionShape* shape, const void* k,
                          const void* v, void* kv, void* stream) {
  return Report(overture::kernels::LaunchQuantizeKv(
      {.k = k,
       .v = v,
       .stride_kv_row = shape->head_dim,
       .stride_kv_head = shape->kv_len * shape->head_dim,
       .num_kv_heads = shape->num_kv_heads,
       .head_dim = shape->head_dim,
       .kv_len = shape->kv_len,
       .out = overture::kernels::Fp8KvIn(kv, shape->num_kv_heads,
                                         shape->head_dim, shape->kv_len)},
      stream));
}

// `scratch` has OvertureFp8QueryBytes; `lse` may be null.
int OvertureFp8Attention(const OvertureAttentionShape* shape,
                         const OvertureAttentionPlan* plan, const void* q,
                         void* kv, void* scratch, void* o, float* lse,
                         void* stream) {
  return Report(overture::kernels::LaunchFp8Attention(
      AttentionParams(*shape, q, nullptr, nullptr, o, lse),
      DevicePlan(*shape, *plan),
      overture::kernels::Fp8KvIn(kv, shape->num_kv_heads, shape->head_dim,
                                 shape->kv_len),
      scratch, stream));
}

}  // extern "C"
