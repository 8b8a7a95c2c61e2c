#include "engine/hf_config.h"

#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/json.h"
#include "engine/or_default.h"
#include "nlohmann/json.hpp"

namespace overture::engine {
namespace {

using nlohmann::json;

// A config is a few KB; the limit bounds what parsing it can cost.
constexpr size_t kMaxConfigBytes = size_t{1} << 20;

absl::Status Unsupported(absl::string_view key, absl::string_view value,
                         absl::string_view supported) {
  return absl::UnimplementedError(
      absl::StrCat("'", key, "' is ", absl::CHexEscape(value.substr(0, 80)),
                   "; supported: ", supported));
}

// The class name, or "" if the file has none.
absl::StatusOr<std::string> ClassName(const json& root) {
  if (!HasJsonMember(root, "architectures")) return std::string();
  OVERTURE_ASSIGN_OR_RETURN(const json* list,
                            GetJsonMember(root, "architectures"));
  if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
    return absl::InvalidArgumentError(
        "'architectures' must be a list of one string");
  }
  return list->front().get<std::string>();
}

// The architecture in our words; `model_type` decides only where no class is
// named.
absl::StatusOr<std::string> Architecture(const json& root, bool* mistral) {
  constexpr absl::string_view kClasses =
      "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM";
  OVERTURE_ASSIGN_OR_RETURN(std::string name, ClassName(root));
  if (name.empty()) {
    OVERTURE_ASSIGN_OR_RETURN(const std::string type,
                              GetJsonString(root, "model_type"));
    if (type == "llama") name = "LlamaForCausalLM";
    if (type == "mistral") name = "MistralForCausalLM";
    if (type == "qwen2") name = "Qwen2ForCausalLM";
    if (name.empty()) {
      return Unsupported("model_type", type, "llama, mistral, qwen2");
    }
  }
  *mistral = name == "MistralForCausalLM";
  if (*mistral || name == "LlamaForCausalLM") return std::string("llama");
  if (name == "Qwen2ForCausalLM") return std::string("qwen2");
  return Unsupported("architectures", name, kClasses);
}

absl::Status RefuseIfTrue(const json& root, absl::string_view key) {
  OVERTURE_ASSIGN_OR_RETURN(const bool value,
                            OrDefault(GetJsonBool(root, key), false));
  if (value) return Unsupported(key, "true", "false");
  return absl::OkStatus();
}

absl::Status RefuseSlidingWindow(const json& root, bool mistral,
                                 const ModelConfig& config) {
  if (const auto types = GetJsonMember(root, "layer_types"); types.ok()) {
    for (const json& type : **types) {
      if (type != "full_attention") {
        return Unsupported("layer_types",
                           type.is_string() ? type.get<std::string>() : "",
                           "full_attention");
      }
    }
  }
  int64_t window = 0;
  if (mistral) {
    // Absent means 4,096, null means none.
    window = root.contains("sliding_window") ? 0 : 4096;
    OVERTURE_ASSIGN_OR_RETURN(
        window, OrDefault(GetJsonInt(root, "sliding_window"), window));
  } else if (config.architecture == "qwen2") {
    OVERTURE_ASSIGN_OR_RETURN(
        const bool used,
        OrDefault(GetJsonBool(root, "use_sliding_window"), false));
    if (used) {
      OVERTURE_ASSIGN_OR_RETURN(
          window, OrDefault<int64_t>(GetJsonInt(root, "sliding_window"), 4096));
    }
  }
  // A window that no position can leave is full attention.
  if (window > 0 && window < config.max_positions) {
    return Unsupported("sliding_window", absl::StrCat(window),
                       "null (full attention)");
  }
  return absl::OkStatus();
}

// The RoPE part of either form: `rope` holds the scaling, and in the newer form
// the theta.
absl::Status ReadRopeScaling(const json& rope, absl::string_view key,
                             RopeScaling* out) {
  if (!rope.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", key, "' is ", rope.type_name(), ", expected an object"));
  }
  const std::string type_key = absl::StrCat(key, ".rope_type");
  OVERTURE_ASSIGN_OR_RETURN(
      const std::string old_type,
      OrDefault(GetJsonString(rope, "type"), std::string("default")));
  OVERTURE_ASSIGN_OR_RETURN(
      const std::string type,
      OrDefault(GetJsonString(rope, "rope_type"), old_type));
  OVERTURE_ASSIGN_OR_RETURN(
      const double rotated,
      OrDefault(GetJsonDouble(rope, "partial_rotary_factor"), 1.0));
  if (rotated != 1.0) {
    return Unsupported("partial_rotary_factor", absl::StrCat(rotated), "1");
  }
  if (type == "default") {
    for (const auto& [name, member] : rope.items()) {
      // One set per layer type: `{"full_attention": {..}, ..}`.
      if (member.is_object()) {
        return Unsupported(absl::StrCat(key, ".", name), "an object",
                           "one set of parameters for all layers");
      }
    }
    return absl::OkStatus();
  }
  if (type != "linear" && type != "llama3") {
    return Unsupported(type_key, type, "default, linear, llama3");
  }
  const absl::Status status = [&]() -> absl::Status {
    OVERTURE_ASSIGN_OR_RETURN(out->factor, GetJsonDouble(rope, "factor"));
    if (type == "linear") {
      out->kind = RopeScaling::Kind::kLinear;
      return absl::OkStatus();
    }
    out->kind = RopeScaling::Kind::kLlama3;
    OVERTURE_ASSIGN_OR_RETURN(out->low_freq_factor,
                              GetJsonDouble(rope, "low_freq_factor"));
    OVERTURE_ASSIGN_OR_RETURN(out->high_freq_factor,
                              GetJsonDouble(rope, "high_freq_factor"));
    OVERTURE_ASSIGN_OR_RETURN(
        out->original_max_positions,
        GetJsonInt(rope, "original_max_position_embeddings"));
    return absl::OkStatus();
  }();
  return WithContext(status, absl::StrCat("'", key, "'"));
}

absl::Status ReadRope(const json& root, ModelConfig* config) {
  OVERTURE_ASSIGN_OR_RETURN(const double top_theta,
                            OrDefault(GetJsonDouble(root, "rope_theta"), 0.0));
  config->rope_theta = top_theta == 0.0 ? 1e4 : top_theta;
  RopeScaling old_form, new_form;
  const bool has_old = HasJsonMember(root, "rope_scaling");
  const bool has_new = HasJsonMember(root, "rope_parameters");
  if (has_old) {
    OVERTURE_RETURN_IF_ERROR(
        ReadRopeScaling(root.at("rope_scaling"), "rope_scaling", &old_form));
  }
  if (has_new) {
    const json& parameters = root.at("rope_parameters");
    OVERTURE_RETURN_IF_ERROR(
        ReadRopeScaling(parameters, "rope_parameters", &new_form));
    OVERTURE_ASSIGN_OR_RETURN(
        config->rope_theta,
        OrDefault(GetJsonDouble(parameters, "rope_theta"), config->rope_theta));
    // A file may carry both forms for older readers; then they must agree.
    if ((top_theta != 0.0 && top_theta != config->rope_theta) ||
        (has_old && !(old_form == new_form))) {
      return absl::InvalidArgumentError(
          "'rope_parameters' contradicts 'rope_theta' or 'rope_scaling'");
    }
  }
  config->rope_scaling = has_new ? new_form : old_form;
  return absl::OkStatus();
}

absl::Status ReadInt32(const json& root, absl::string_view key, int32_t* out) {
  OVERTURE_ASSIGN_OR_RETURN(const int64_t value, GetJsonInt(root, key));
  if (value < 0 || value > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", key, "' is ", value, ", expected 0 to ",
                     std::numeric_limits<int32_t>::max()));
  }
  *out = static_cast<int32_t>(value);
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ReadConfig(const json& root) {
  ModelConfig config;
  bool mistral = false;
  OVERTURE_ASSIGN_OR_RETURN(config.architecture, Architecture(root, &mistral));
  OVERTURE_ASSIGN_OR_RETURN(
      config.name,
      OrDefault(GetJsonString(root, "_name_or_path"), std::string()));
  OVERTURE_ASSIGN_OR_RETURN(config.vocab_size, GetJsonInt(root, "vocab_size"));
  OVERTURE_ASSIGN_OR_RETURN(config.hidden_size,
                            GetJsonInt(root, "hidden_size"));
  OVERTURE_ASSIGN_OR_RETURN(config.intermediate_size,
                            GetJsonInt(root, "intermediate_size"));
  OVERTURE_ASSIGN_OR_RETURN(config.max_positions,
                            GetJsonInt(root, "max_position_embeddings"));
  OVERTURE_RETURN_IF_ERROR(
      ReadInt32(root, "num_hidden_layers", &config.num_layers));
  OVERTURE_RETURN_IF_ERROR(
      ReadInt32(root, "num_attention_heads", &config.num_q_heads));
  config.num_kv_heads = config.num_q_heads;
  if (HasJsonMember(root, "num_key_value_heads")) {
    OVERTURE_RETURN_IF_ERROR(
        ReadInt32(root, "num_key_value_heads", &config.num_kv_heads));
  }
  if (HasJsonMember(root, "head_dim")) {
    OVERTURE_RETURN_IF_ERROR(ReadInt32(root, "head_dim", &config.head_dim));
  } else if (config.num_q_heads > 0 &&
             config.hidden_size % config.num_q_heads == 0 &&
             config.hidden_size / config.num_q_heads <= 1024) {
    config.head_dim =
        static_cast<int32_t>(config.hidden_size / config.num_q_heads);
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "'head_dim' is missing and hidden_size ", config.hidden_size, " over ",
        config.num_q_heads, " heads gives none up to 1024"));
  }
  OVERTURE_ASSIGN_OR_RETURN(
      config.rms_norm_eps,
      OrDefault(GetJsonDouble(root, "rms_norm_eps"), 1e-6));
  OVERTURE_ASSIGN_OR_RETURN(
      config.tied_embeddings,
      OrDefault(GetJsonBool(root, "tie_word_embeddings"), false));
  config.qkv_bias = config.architecture == "qwen2";
  OVERTURE_RETURN_IF_ERROR(ReadRope(root, &config));
  OVERTURE_ASSIGN_OR_RETURN(config.eos_token_ids, ParseHfEosIds(root));

  OVERTURE_ASSIGN_OR_RETURN(
      const std::string activation,
      OrDefault(GetJsonString(root, "hidden_act"), std::string("silu")));
  if (activation != "silu") {
    return Unsupported("hidden_act", activation, "silu");
  }
  // Llama's attention_bias also puts one on the output projection.
  OVERTURE_RETURN_IF_ERROR(RefuseIfTrue(root, "attention_bias"));
  OVERTURE_RETURN_IF_ERROR(RefuseIfTrue(root, "mlp_bias"));
  OVERTURE_ASSIGN_OR_RETURN(
      const double rotated,
      OrDefault(GetJsonDouble(root, "partial_rotary_factor"), 1.0));
  if (rotated != 1.0) {
    return Unsupported("partial_rotary_factor", absl::StrCat(rotated), "1");
  }
  if (HasJsonMember(root, "quantization_config")) {
    return Unsupported("quantization_config", "set",
                       "unquantised F32, F16 or BF16 weights");
  }
  OVERTURE_RETURN_IF_ERROR(RefuseSlidingWindow(root, mistral, config));
  OVERTURE_RETURN_IF_ERROR(Validate(config));
  return config;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ParseHfEosIds(const json& root) {
  std::vector<int32_t> ids;
  const auto member = GetJsonMember(root, "eos_token_id");
  if (absl::IsNotFound(member.status())) return ids;
  OVERTURE_RETURN_IF_ERROR(member.status());
  const json list = (*member)->is_array() ? **member : json::array({**member});
  for (const json& id : list) {
    if (!id.is_number_integer() || id < 0 ||
        id > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(
          "'eos_token_id' must be a token id or a list of them");
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

absl::StatusOr<ModelConfig> ParseHfConfig(absl::string_view text) {
  if (text.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json has ", text.size(), " bytes, the limit is ",
                     kMaxConfigBytes));
  }
  OVERTURE_ASSIGN_OR_RETURN(const json root, ParseJson(text, "config.json"));
  absl::StatusOr<ModelConfig> config = ReadConfig(root);
  // A missing key is the file's fault, not a missing file.
  if (absl::IsNotFound(config.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: ", config.status().message()));
  }
  if (!config.ok()) return WithContext(config.status(), "config.json");
  return config;
}

}  // namespace overture::engine
