// ModelConfig from a GGUF file's metadata and tensor table. Thread-safe: no
// state.
//
// Architectures llama and qwen2. Whatever would change the output and is not
// implemented (experts, sliding window, partial rotation, yarn) is refused,
// never ignored.
//
// llama.cpp's converter turns llama3 RoPE scaling into a tensor of divisors,
// `rope_freqs.weight`. It is turned back into the scaling's parameters if they
// reproduce every divisor, else refused.
//
// Errors: INVALID_ARGUMENT naming the key, value and limit; UNIMPLEMENTED
// naming what is not supported and what is.
// Source: ggml-org/ggml:docs/gguf.md; ggml-org/llama.cpp src/llama-model.cpp
// for the defaults, convert_hf_to_gguf.py for `rope_freqs.weight`.
#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/gguf.h"
#include "engine/model_config.h"

namespace overture::engine {

// The result has passed Validate().
absl::StatusOr<ModelConfig> ReadGgufConfig(const Gguf& gguf);

// The scaling whose inverse frequencies are theta^(-2i/d) / divisors[i], d =
// 2 * divisors.size(). UNIMPLEMENTED if none of ours reproduces each divisor
// within 1e-5 of its value.
absl::StatusOr<RopeScaling> RopeScalingFromDivisors(
    double theta, absl::Span<const float> divisors);

}  // namespace overture::engine
