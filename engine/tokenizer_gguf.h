// The tokenizer.ggml.* keys of a GGUF file as a TokenizerSpec.
//
// INVALID_ARGUMENT naming the key and index for data that is missing or
// inconsistent; UNIMPLEMENTED for another tokenizer.ggml.model than "gpt2" or
// a tokenizer.ggml.pre that is unknown, naming it and the known ones.
// Source: ggml-org/ggml:docs/gguf.md; the meaning of each "pre" as in
// ggml-org/llama.cpp src/llama-vocab.cpp and, where llama.cpp leaves a step
// out (NFC for Qwen2), the model's own tokenizer.json.
#pragma once

#include "absl/status/statusor.h"
#include "engine/gguf.h"
#include "engine/tokenizer_spec.h"

namespace overture::engine {

// The spec's texts borrow from the bytes that `gguf` was parsed from.
absl::StatusOr<TokenizerSpec> TokenizerSpecFromGguf(const Gguf& gguf);

}  // namespace overture::engine
