// The GPU implementation of engine::Backend. Only in builds with a CUDA
// compiler (OVERTURE_HAVE_CUDA); plain C++ header.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/backend.h"
#include "engine/model_files.h"

namespace overture::engine {

// bf16 weights, activations and KV, fp32 residual stream and sums, on the
// device of that index; with kFp8 the layers' products multiply e4m3. Same
// results as the CPU back end in bf16 with these linears up to the order of
// sums, so its numerics() has a name of its own. With FP8 attention
// (docs/fp8_attention.md) it Supports() dense and A-shape, and a token's KV
// depends on the whole of its block.
//
// A prefill that does not fit the device's free memory is refused before it
// starts: RESOURCE_EXHAUSTED with the bytes needed. A CUDA error while it runs
// is INTERNAL; if it has destroyed the context (a trap, a bad address, a lost
// device), Health says so from then on.
//
// UNIMPLEMENTED for a head dim other than 64, 96 and 128, of FP8 attention than
// 128 (on 9.0 alone), hidden or
// intermediate sizes that are not multiples of 8 (16 in FP8) or above 32,768
// and 65,536, or a device of compute capability below 8.0, in FP8 other than
// 9.0; FAILED_PRECONDITION without a device, a driver or cuBLASLt;
// RESOURCE_EXHAUSTED if the weights do not fit; INVALID_ARGUMENT for an index
// out of range, and as CreateCpuBackend.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(
    const ModelFiles& files, int32_t device_index,
    LinearPrecision linears = LinearPrecision::kBF16,
    AttentionPrecision attention = AttentionPrecision::kBF16);

}  // namespace overture::engine
