// Probe attention on the CPU; the oracle of probe_attention.h. Probabilities
// are held for one head at a time: [num_rows, kv_len] fp32.
#pragma once

#include "absl/status/status.h"
#include "kernels/probe_attention/probe_params.h"

namespace overture::kernels {

// Runs on the OpenMP threads; bits do not depend on how many. Thread-safe.
// RESOURCE_EXHAUSTED without the memory for one head, and as
// CheckProbeAttention.
absl::Status ProbeAttentionCpu(const ProbeAttentionParams& params);

}  // namespace overture::kernels
