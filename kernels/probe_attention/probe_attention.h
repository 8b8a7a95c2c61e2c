// Probe attention on the GPU: the twin of probe_attention_cpu.h, bf16 q and k.
// Devices of compute capability 8.0 and later. Plain C++ header.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/probe_attention/probe_params.h"

namespace overture::kernels {

// Bytes of scratch for `num_heads` query heads, the maxima and sums of rows: at
// most 129 KiB a head, whatever num_rows is.
int64_t ProbeScratchBytes(int64_t kv_len, int32_t num_heads);

// As ProbeAttentionCpu, all pointers on the device; launches on `stream` (a
// cudaStream_t) and returns, borrowing everything until the stream has passed
// the launch. Sums are added in one order: equal inputs give equal bits on
// devices with as many multiprocessors.
//
// `scratch` is 16-byte aligned; RESOURCE_EXHAUSTED names the bytes if it is
// too small. UNIMPLEMENTED for a dtype other than bf16 or a head dim that is
// not a multiple of 16 up to 128; INVALID_ARGUMENT for q or k that is not
// 16-byte aligned, strides that are not multiples of 8 elements or more than
// 2^30 keys, and as CheckProbeAttention.
absl::Status LaunchProbeAttention(const ProbeAttentionParams& params,
                                  void* scratch, int64_t scratch_bytes,
                                  void* stream);

// The kernels behind it. On a device of compute capability 9.0 kSm90 runs
// wherever at least three query heads share a KV head.
enum class ProbeKernel { kSm80, kSm90 };

// The same with a kernel of the caller's choice; REQUIRES a device that has it.
absl::Status LaunchProbeAttentionWith(ProbeKernel kernel,
                                      const ProbeAttentionParams& params,
                                      void* scratch, int64_t scratch_bytes,
                                      void* stream);

}  // namespace overture::kernels
