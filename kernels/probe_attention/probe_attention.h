// Probe attention on the GPU: the twin of probe_attention_cpu.h, bf16 q and k.
// Plain C++ header.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/probe_attention/probe_attention_cpu.h"

namespace overture::kernels {

// Bytes of scratch with which LaunchProbeAttention takes `num_heads` query
// heads at once. Logits of at most 64 rows are held at a time, whatever
// num_rows is.
int64_t ProbeScratchBytes(int64_t kv_len, int32_t num_heads);

// As ProbeAttentionCpu, all pointers on the device; launches on `stream` (a
// cudaStream_t) and returns, borrowing everything until the stream has passed
// the launch. Sums are added in one order: equal inputs give equal bits.
//
// `scratch` is 16-byte aligned; RESOURCE_EXHAUSTED names the bytes if it is
// too small for one head. More of it means fewer launches. UNIMPLEMENTED for a
// dtype other than bf16 or a head dim that is not a multiple of 16 up to 128;
// INVALID_ARGUMENT for strides that are not multiples of 8 elements, and as
// ProbeAttentionCpu.
absl::Status LaunchProbeAttention(const ProbeAttentionParams& params,
                                  void* scratch, int64_t scratch_bytes,
                                  void* stream);

}  // namespace overture::kernels
