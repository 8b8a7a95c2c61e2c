// Attention over a tile plan with both products in e4m3, on the GPU (sm_90a).
// Plain C++ header. Off by default: see docs/fp8_attention.md for what it costs
// in accuracy.
//
//   LaunchQuantizeKv(...)     once per layer, or per stretch of new keys
//   LaunchFp8Attention(...)   quantises its queries, then attends
//
// Softmax over keys is invariant under subtracting one vector from all of them,
// so K is quantised without c, the mean of the sequence's first
// fp8::kMeanKeys keys (fewer if there are fewer); the log-sum-exp gets q . c
// back. Keys of a real model share such a vector, and it would use up e4m3's
// range. The first keys and not all: a row then depends on no key after its
// token block, which a stored prefix relies on (docs/design.md, D2).
//
// The output is divided by the sum of the probabilities' codes, so that values
// that a row's keys share come out as they are. The log-sum-exp is of that sum,
// too: off by at most 2^-4, by much less where a row has many keys.
//
// A value that is not finite makes every output NaN that attends to its tile of
// 64 keys, or whose query row holds it; one in the first kMeanKeys keys of K
// every output of the head.
//
// All pointers are device pointers, 16-byte aligned. Launches on `stream`, a
// cudaStream_t, and returns; borrows everything until the stream has passed.
// Errors: INVALID_ARGUMENT / UNIMPLEMENTED name what does not fit.
//
// Source: FlashAttention-3, arXiv 2407.08608, section 3.3; the mean from
// SageAttention, arXiv 2410.02367, section 4.2.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/fp8_attention/quantized_kv.h"
#include "kernels/sparse_attention/device_plan.h"
#include "kernels/sparse_attention/params.h"

namespace overture::kernels {

// Writes params.out on the device.
absl::Status LaunchQuantizeKv(const QuantizeKvParams& params, void* stream);

// OK if LaunchFp8Attention accepts these shapes on the calling thread's current
// device: bf16, head dim 128, strides of q and o multiples of 8 elements,
// compute capability 9.0.
absl::Status SupportsFp8Attention(const SparseAttentionParams& params);

// `params` as of LaunchSparseAttention; k and v and their strides are ignored,
// `kv` holds at least plan.kv_len keys. `scratch` has Fp8QueryBytes. The plan
// lists no single columns and no corrected blocks (both null). REQUIRES, not
// checked: its key tiles start at multiples of 64.
absl::Status LaunchFp8Attention(const SparseAttentionParams& params,
                                const DeviceTilePlan& plan, const Fp8Kv& kv,
                                void* scratch, void* stream);

}  // namespace overture::kernels
