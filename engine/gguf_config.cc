#include "engine/gguf_config.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/dequantize.h"
#include "engine/or_default.h"

namespace overture::engine {
namespace {

absl::Status Unsupported(absl::string_view key, absl::string_view value,
                         absl::string_view supported) {
  return absl::UnimplementedError(
      absl::StrCat("key '", key, "' is ", absl::CHexEscape(value.substr(0, 80)),
                   "; supported: ", supported));
}

absl::StatusOr<int32_t> ToInt32(absl::string_view key,
                                absl::StatusOr<int64_t> value) {
  OVERTURE_RETURN_IF_ERROR(value.status());
  if (*value < 0 || *value > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("key '", key, "' is ", *value, ", expected 0 to ",
                     std::numeric_limits<int32_t>::max()));
  }
  return static_cast<int32_t>(*value);
}

// Hugging Face's `_compute_llama3_parameters` as divisors of theta^(-2i/d).
double Llama3Divisor(const RopeScaling& scaling, double wavelength) {
  const double context = static_cast<double>(scaling.original_max_positions);
  if (wavelength < context / scaling.high_freq_factor) return 1.0;
  if (wavelength > context / scaling.low_freq_factor) return scaling.factor;
  const double smooth = (context / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return 1.0 / ((1.0 - smooth) / scaling.factor + smooth);
}

double Wavelength(double theta, size_t i, size_t half_dim) {
  return 2.0 * std::numbers::pi *
         std::pow(theta, static_cast<double>(i) / half_dim);
}

// The converter computes in double and stores float: 2^-24 = 6e-8 of rounding.
// 1e-5 leaves room for converters that compute in float, and moves an angle at
// position 131,072 by at most what float rounding of the angle itself does.
bool Reproduces(const RopeScaling& scaling, double theta,
                absl::Span<const float> divisors) {
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double expected =
        Llama3Divisor(scaling, Wavelength(theta, i, divisors.size()));
    if (!(std::abs(divisors[i] - expected) <= 1e-5 * expected)) return false;
  }
  return true;
}

absl::Status ReadRopeScaling(const Gguf& gguf, const std::string& prefix,
                             ModelConfig* config) {
  const std::string type_key = absl::StrCat(prefix, "rope.scaling.type");
  const std::string factor_key = absl::StrCat(prefix, "rope.scaling.factor");
  // llama.cpp takes an absent type for linear.
  OVERTURE_ASSIGN_OR_RETURN(
      const absl::string_view type,
      OrDefault<absl::string_view>(gguf.GetString(type_key), "linear"));
  if (type != "none" && type != "linear") {
    return Unsupported(type_key, type, "none, linear");
  }
  OVERTURE_ASSIGN_OR_RETURN(
      const double old_factor,
      OrDefault(gguf.GetDouble(absl::StrCat(prefix, "rope.scale_linear")),
                0.0));
  OVERTURE_ASSIGN_OR_RETURN(const double factor,
                            OrDefault(gguf.GetDouble(factor_key), old_factor));
  if (type == "linear" && factor != 0.0 && factor != 1.0) {
    config->rope_scaling = {.kind = RopeScaling::Kind::kLinear,
                            .factor = factor};
  }
  const std::string attention_key =
      absl::StrCat(prefix, "rope.scaling.attn_factor");
  OVERTURE_ASSIGN_OR_RETURN(const double attention_factor,
                            OrDefault(gguf.GetDouble(attention_key), 1.0));
  if (attention_factor != 1.0) {
    return Unsupported(attention_key, absl::StrCat(attention_factor), "1");
  }

  const Gguf::Tensor* tensor = gguf.FindTensor("rope_freqs.weight");
  if (tensor == nullptr) return absl::OkStatus();
  if (tensor->num_dims != 1 || tensor->dims[0] != config->head_dim / 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor 'rope_freqs.weight' has shape [",
        absl::StrJoin(tensor->dims, tensor->dims + tensor->num_dims, ", "),
        "], expected [", config->head_dim / 2, "]"));
  }
  std::vector<float> divisors(tensor->dims[0]);
  OVERTURE_RETURN_IF_ERROR(
      Dequantize(tensor->type, tensor->data, absl::MakeSpan(divisors)));
  OVERTURE_ASSIGN_OR_RETURN(
      const RopeScaling scaling,
      RopeScalingFromDivisors(config->rope_theta, divisors));
  if (scaling.kind == RopeScaling::Kind::kNone) return absl::OkStatus();
  if (config->rope_scaling.kind != RopeScaling::Kind::kNone) {
    return absl::UnimplementedError(
        absl::StrCat("key '", factor_key,
                     "' and tensor 'rope_freqs.weight' both scale the "
                     "RoPE frequencies; supported: one of them"));
  }
  config->rope_scaling = scaling;
  return absl::OkStatus();
}

// What the layer loop does not do, by the key that asks for it.
absl::Status RefuseUnsupported(const Gguf& gguf, const std::string& prefix,
                               const ModelConfig& config) {
  struct Case {
    absl::string_view key;
    int64_t neutral;  // the value that asks for nothing
  };
  const Case cases[] = {{"expert_count", 0},
                        {"attention.value_length", config.head_dim},
                        {"rope.dimension_count", config.head_dim}};
  for (const Case& c : cases) {
    const std::string key = absl::StrCat(prefix, c.key);
    OVERTURE_ASSIGN_OR_RETURN(const int64_t value,
                              OrDefault(gguf.GetInt(key), c.neutral));
    if (value != c.neutral) {
      return Unsupported(key, absl::StrCat(value), absl::StrCat(c.neutral));
    }
  }
  const std::string window_key =
      absl::StrCat(prefix, "attention.sliding_window");
  OVERTURE_ASSIGN_OR_RETURN(const int64_t window,
                            OrDefault<int64_t>(gguf.GetInt(window_key), 0));
  // A window that no position can leave is full attention.
  if (window != 0 && window < config.max_positions) {
    return Unsupported(window_key, absl::StrCat(window), "0 (full attention)");
  }
  const std::string causal_key = absl::StrCat(prefix, "attention.causal");
  OVERTURE_ASSIGN_OR_RETURN(const bool causal,
                            OrDefault(gguf.GetBool(causal_key), true));
  if (!causal) return Unsupported(causal_key, "false", "true");
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ReadConfig(const Gguf& gguf) {
  ModelConfig config;
  OVERTURE_ASSIGN_OR_RETURN(const absl::string_view architecture,
                            gguf.GetString("general.architecture"));
  config.architecture = std::string(architecture);
  bool supported = false;
  for (const absl::string_view name : SupportedArchitectures()) {
    supported = supported || name == architecture;
  }
  // Validate() words the refusal; the keys below would not be there.
  if (!supported) return Validate(config);

  const std::string prefix = absl::StrCat(architecture, ".");
  const auto get_int32 = [&](absl::string_view name) {
    const std::string key = absl::StrCat(prefix, name);
    return ToInt32(key, gguf.GetInt(key));
  };
  OVERTURE_ASSIGN_OR_RETURN(
      const absl::string_view name,
      OrDefault<absl::string_view>(gguf.GetString("general.name"), ""));
  config.name = std::string(name);
  OVERTURE_ASSIGN_OR_RETURN(
      config.hidden_size,
      gguf.GetInt(absl::StrCat(prefix, "embedding_length")));
  OVERTURE_ASSIGN_OR_RETURN(
      config.intermediate_size,
      gguf.GetInt(absl::StrCat(prefix, "feed_forward_length")));
  OVERTURE_ASSIGN_OR_RETURN(
      config.max_positions,
      gguf.GetInt(absl::StrCat(prefix, "context_length")));
  OVERTURE_ASSIGN_OR_RETURN(config.num_layers, get_int32("block_count"));
  OVERTURE_ASSIGN_OR_RETURN(config.num_q_heads,
                            get_int32("attention.head_count"));
  OVERTURE_ASSIGN_OR_RETURN(
      config.num_kv_heads,
      OrDefault(get_int32("attention.head_count_kv"), config.num_q_heads));
  absl::StatusOr<int32_t> head_dim = get_int32("attention.key_length");
  if (absl::IsNotFound(head_dim.status())) {
    if (config.num_q_heads <= 0 ||
        config.hidden_size % config.num_q_heads != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "key '", prefix, "attention.head_count' is ", config.num_q_heads,
          ", expected a divisor of embedding_length, ", config.hidden_size));
    }
    const std::string key = absl::StrCat(prefix, "attention.key_length");
    head_dim = ToInt32(key, config.hidden_size / config.num_q_heads);
  }
  OVERTURE_ASSIGN_OR_RETURN(config.head_dim, std::move(head_dim));
  OVERTURE_ASSIGN_OR_RETURN(
      config.rms_norm_eps,
      gguf.GetDouble(absl::StrCat(prefix, "attention.layer_norm_rms_epsilon")));
  OVERTURE_ASSIGN_OR_RETURN(
      config.rope_theta,
      OrDefault(gguf.GetDouble(absl::StrCat(prefix, "rope.freq_base")), 1e4));

  // The embedding's rows are the vocabulary; the keys may only agree.
  const Gguf::Tensor* embedding = gguf.FindTensor("token_embd.weight");
  if (embedding == nullptr) {
    return absl::InvalidArgumentError("tensor 'token_embd.weight' is missing");
  }
  config.vocab_size = embedding->dims[1];
  const std::string vocab_key = absl::StrCat(prefix, "vocab_size");
  OVERTURE_ASSIGN_OR_RETURN(
      const int64_t vocab_size,
      OrDefault(gguf.GetInt(vocab_key), config.vocab_size));
  if (vocab_size != config.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "key '", vocab_key, "' is ", vocab_size,
        ", but tensor 'token_embd.weight' has ", config.vocab_size, " rows"));
  }
  config.tied_embeddings = gguf.FindTensor("output.weight") == nullptr;
  config.qkv_bias = gguf.FindTensor("blk.0.attn_q.bias") != nullptr;
  for (const absl::string_view key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id"}) {
    const absl::StatusOr<int32_t> id = ToInt32(key, gguf.GetInt(key));
    if (absl::IsNotFound(id.status())) continue;
    OVERTURE_RETURN_IF_ERROR(id.status());
    bool known = false;
    for (const int32_t other : config.eos_token_ids) {
      known = known || other == *id;
    }
    if (!known) config.eos_token_ids.push_back(*id);
  }
  // Before the scaling, which computes with theta and head_dim.
  OVERTURE_RETURN_IF_ERROR(Validate(config));
  OVERTURE_RETURN_IF_ERROR(RefuseUnsupported(gguf, prefix, config));
  OVERTURE_RETURN_IF_ERROR(ReadRopeScaling(gguf, prefix, &config));
  OVERTURE_RETURN_IF_ERROR(Validate(config));
  return config;
}

}  // namespace

absl::StatusOr<RopeScaling> RopeScalingFromDivisors(
    double theta, absl::Span<const float> divisors) {
  const absl::Status unsupported = absl::UnimplementedError(
      "tensor 'rope_freqs.weight' holds RoPE divisors that are neither equal "
      "(linear) nor llama3 scaling; supported: none, linear, llama3");
  if (divisors.empty()) return unsupported;
  bool all_equal = true;
  for (const float divisor : divisors) {
    if (!std::isfinite(divisor) || divisor <= 0) return unsupported;
    all_equal = all_equal && divisor == divisors[0];
  }
  if (all_equal) {
    if (divisors[0] == 1.0f) return RopeScaling{};
    return RopeScaling{.kind = RopeScaling::Kind::kLinear,
                       .factor = divisors[0]};
  }
  // The lowest frequency is divided by the whole factor.
  RopeScaling scaling{.kind = RopeScaling::Kind::kLlama3,
                      .factor = divisors[divisors.size() - 1],
                      .low_freq_factor = 1.0,
                      .high_freq_factor = 4.0,
                      .original_max_positions = 8192};
  if (Reproduces(scaling, theta, divisors)) return scaling;

  // Other parameters than Llama 3.1's: the divisors only know context /
  // low_freq_factor and context / high_freq_factor, so low_freq_factor may stay
  // 1. Between the two, smooth = slope / wavelength - offset is a line through
  // any two of its points.
  std::vector<std::pair<double, double>> points;  // 1 / wavelength, smooth
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double inverse_factor = 1.0 / scaling.factor;
    const double smooth =
        (1.0 / divisors[i] - inverse_factor) / (1.0 - inverse_factor);
    if (smooth > 1e-4 && smooth < 1 - 1e-4) {
      points.emplace_back(1.0 / Wavelength(theta, i, divisors.size()), smooth);
    }
  }
  if (points.size() < 2) return unsupported;
  const auto& [x0, y0] = points.front();
  const auto& [x1, y1] = points.back();
  const double slope = (y0 - y1) / (x0 - x1);
  const double offset = slope * x0 - y0;
  const double context = std::round(slope / offset);
  if (!(offset > 1e-6) || !(context >= 1 && context <= 0x1p30)) {
    return unsupported;
  }
  scaling.original_max_positions = static_cast<int64_t>(context);
  scaling.high_freq_factor = 1.0 + 1.0 / offset;
  if (Reproduces(scaling, theta, divisors)) return scaling;
  return unsupported;
}

absl::StatusOr<ModelConfig> ReadGgufConfig(const Gguf& gguf) {
  absl::StatusOr<ModelConfig> config = ReadConfig(gguf);
  // A missing key is the file's fault, not a missing file.
  if (absl::IsNotFound(config.status())) {
    return absl::InvalidArgumentError(config.status().message());
  }
  return config;
}

}  // namespace overture::engine
