#include "engine/model_config.h"

#include <cmath>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace overture::engine {
namespace {

constexpr absl::string_view kArchitectures[] = {"llama", "qwen2"};

absl::Status InRange(absl::string_view field, int64_t value, int64_t min,
                     int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", expected ", min, " to ", max));
}

// NaN fails every comparison and so is refused.
absl::Status Between(absl::string_view field, double value, double min,
                     double max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", expected ", min, " to ", max));
}

absl::Status ValidateRopeScaling(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::kNone) return absl::OkStatus();
  OVERTURE_RETURN_IF_ERROR(
      Between("rope_scaling.factor", scaling.factor, 1e-3, 1e6));
  if (scaling.kind == RopeScaling::Kind::kLinear) return absl::OkStatus();
  OVERTURE_RETURN_IF_ERROR(Between("rope_scaling.low_freq_factor",
                                   scaling.low_freq_factor, 1e-3, 1e6));
  OVERTURE_RETURN_IF_ERROR(Between("rope_scaling.high_freq_factor",
                                   scaling.high_freq_factor, 1e-3, 1e6));
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rope_scaling.high_freq_factor is ", scaling.high_freq_factor,
        ", expected more than low_freq_factor, ", scaling.low_freq_factor));
  }
  return InRange("rope_scaling.original_max_positions",
                 scaling.original_max_positions, 1,
                 std::numeric_limits<int32_t>::max());
}

}  // namespace

absl::Span<const absl::string_view> SupportedArchitectures() {
  return kArchitectures;
}

absl::Status Validate(const ModelConfig& config) {
  bool supported = false;
  for (const absl::string_view name : kArchitectures) {
    supported = supported || config.architecture == name;
  }
  if (!supported) {
    return absl::UnimplementedError(absl::StrCat(
        "architecture '", absl::CHexEscape(config.architecture.substr(0, 80)),
        "' is not supported; supported: ",
        absl::StrJoin(kArchitectures, ", ")));
  }
  // The limits keep every product of two sizes far inside int64_t and every
  // position and id inside int32_t; heads and layers as in KvLayout.
  constexpr int64_t kMaxSize = int64_t{1} << 20;
  constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
  OVERTURE_RETURN_IF_ERROR(
      InRange("vocab_size", config.vocab_size, 1, int64_t{1} << 24));
  OVERTURE_RETURN_IF_ERROR(
      InRange("hidden_size", config.hidden_size, 1, kMaxSize));
  OVERTURE_RETURN_IF_ERROR(
      InRange("intermediate_size", config.intermediate_size, 1, kMaxSize));
  OVERTURE_RETURN_IF_ERROR(InRange("num_layers", config.num_layers, 1, 4096));
  OVERTURE_RETURN_IF_ERROR(InRange("num_q_heads", config.num_q_heads, 1, 4096));
  OVERTURE_RETURN_IF_ERROR(
      InRange("num_kv_heads", config.num_kv_heads, 1, 1024));
  if (config.num_q_heads % config.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_q_heads is ", config.num_q_heads,
        ", expected a multiple of num_kv_heads, ", config.num_kv_heads));
  }
  OVERTURE_RETURN_IF_ERROR(InRange("head_dim", config.head_dim, 2, 1024));
  if (config.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "head_dim is ", config.head_dim, ", expected an even number"));
  }
  OVERTURE_RETURN_IF_ERROR(
      InRange("max_positions", config.max_positions, 1, kMaxInt32));
  OVERTURE_RETURN_IF_ERROR(
      Between("rms_norm_eps", config.rms_norm_eps, 1e-20, 1.0));
  OVERTURE_RETURN_IF_ERROR(Between("rope_theta", config.rope_theta, 1.0, 1e15));
  OVERTURE_RETURN_IF_ERROR(ValidateRopeScaling(config.rope_scaling));
  for (const int32_t id : config.eos_token_ids) {
    OVERTURE_RETURN_IF_ERROR(
        InRange("eos_token_ids", id, 0, config.vocab_size - 1));
  }
  return absl::OkStatus();
}

}  // namespace overture::engine
