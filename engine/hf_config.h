// ModelConfig from a Hugging Face config.json. Thread-safe: no state.
//
// Accepted: LlamaForCausalLM, MistralForCausalLM (as llama) and
// Qwen2ForCausalLM, without sliding window, with rope type default, linear or
// llama3, in the older (`rope_theta`, `rope_scaling`) or the newer
// (`rope_parameters`) form. Whatever would change the output and is not
// implemented (another activation, biases, quantised weights, partial rotation)
// is refused, never ignored.
//
// Errors: INVALID_ARGUMENT naming the key, value and limit; UNIMPLEMENTED
// naming what is not supported and what is.
// Source: Hugging Face transformers, configuration_{llama,mistral,qwen2}.py for
// the defaults of absent keys, modeling_rope_utils.py.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model_config.h"
#include "nlohmann/json_fwd.hpp"

namespace overture::engine {

// `text` is the file's; the result has passed Validate().
absl::StatusOr<ModelConfig> ParseHfConfig(absl::string_view text);

// `eos_token_id` of config.json or generation_config.json: absent or null, an
// integer, or a list.
absl::StatusOr<std::vector<int32_t>> ParseHfEosIds(const nlohmann::json& root);

}  // namespace overture::engine
