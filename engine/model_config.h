// What the layer loop needs to know about a Llama-family model, whatever file
// it came from. Plain data; Validate() is called by every loader.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace overture::engine {

// RoPE frequency scaling. Source of kLlama3: Hugging Face
// modeling_rope_utils, `_compute_llama3_parameters`.
struct RopeScaling {
  enum class Kind : uint8_t { kNone = 0, kLinear = 1, kLlama3 = 2 };
  Kind kind = Kind::kNone;
  double factor = 1.0;                    // kLinear, kLlama3: > 0
  double low_freq_factor = 1.0;           // kLlama3
  double high_freq_factor = 4.0;          // kLlama3, > low_freq_factor
  int64_t original_max_positions = 8192;  // kLlama3
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

struct ModelConfig {
  std::string architecture;  // "llama": the only family the layer loop runs;
                             // qwen2 differs by its QKV bias
  std::string name;          // for people; may be empty
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int32_t num_layers = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_q_heads
  int32_t head_dim = 0;      // even
  int64_t max_positions = 0;
  double rms_norm_eps = 1e-5;
  double rope_theta = 1e4;
  RopeScaling rope_scaling;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  std::vector<int32_t> eos_token_ids;  // generation stops at any of them
};

// The architectures LoadModelFiles accepts, e.g. {"llama", "qwen2"}.
absl::Span<const absl::string_view> SupportedArchitectures();

// INVALID_ARGUMENT naming the field, the value and the limit.
// UNIMPLEMENTED for an architecture outside SupportedArchitectures(), naming it
// and the list.
absl::Status Validate(const ModelConfig& config);

}  // namespace overture::engine
