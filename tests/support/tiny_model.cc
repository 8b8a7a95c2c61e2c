#include "tests/support/tiny_model.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <random>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/weight_table.h"
#include "nlohmann/json.hpp"
#include "tests/support/gguf_writer.h"
#include "tests/support/safetensors_writer.h"

namespace overture::testing {
namespace {

using engine::TensorRole;
using nlohmann::json;

bool IsQOrK(TensorRole role) {
  return role == TensorRole::kQ || role == TensorRole::kK;
}
bool IsNorm(TensorRole role) {
  return role == TensorRole::kOutputNorm ||
         role == TensorRole::kAttentionNorm || role == TensorRole::kMlpNorm;
}

float Rounded(float value, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return value;
    case DType::kF16:
      return static_cast<float>(Float16(value));
    case DType::kBF16:
      return static_cast<float>(BFloat16(value));
  }
  return value;
}

std::string Encode(absl::Span<const float> values, DType dtype) {
  std::string bytes;
  for (const float value : values) {
    switch (dtype) {
      case DType::kF32:
        bytes += Raw(value);
        break;
      case DType::kF16:
        bytes += Raw(Float16(value).bits);
        break;
      case DType::kBF16:
        bytes += Raw(BFloat16(value).bits);
        break;
    }
  }
  return bytes;
}

// Hugging Face's row order to the one of llama.cpp's converter: per head
// reshape [2, D/2], transpose.
std::vector<float> Interleave(absl::Span<const float> values, int64_t columns,
                              int64_t head_dim) {
  std::vector<float> out(values.size());
  const int64_t num_rows = static_cast<int64_t>(values.size()) / columns;
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t head = row / head_dim;
    const int64_t half = row % head_dim / (head_dim / 2);
    const int64_t i = row % (head_dim / 2);
    const int64_t to = head * head_dim + 2 * i + half;
    for (int64_t c = 0; c < columns; ++c) {
      out[to * columns + c] = values[row * columns + c];
    }
  }
  return out;
}

// llama.cpp's convert_hf_to_gguf.py, `generate_extra_tensors`.
std::vector<float> Llama3Divisors(const TinyModelOptions& options) {
  const engine::RopeScaling& scaling = options.rope_scaling;
  const double context = static_cast<double>(scaling.original_max_positions);
  std::vector<float> divisors;
  for (int32_t i = 0; i < options.head_dim; i += 2) {
    const double wavelength =
        2 * std::numbers::pi *
        std::pow(options.rope_theta, static_cast<double>(i) / options.head_dim);
    if (wavelength < context / scaling.high_freq_factor) {
      divisors.push_back(1.0f);
    } else if (wavelength > context / scaling.low_freq_factor) {
      divisors.push_back(static_cast<float>(scaling.factor));
    } else {
      const double smooth =
          (context / wavelength - scaling.low_freq_factor) /
          (scaling.high_freq_factor - scaling.low_freq_factor);
      divisors.push_back(
          static_cast<float>(1 / ((1 - smooth) / scaling.factor + smooth)));
    }
  }
  return divisors;
}

// GPT-2's `bytes_to_unicode`: bytes that print stand for themselves and come
// first, the rest follow from U+0100. Element i is the text of token i.
std::vector<std::string> ByteTokens() {
  std::vector<int> code_points;
  for (int b = 0x21; b <= 0x7e; ++b) code_points.push_back(b);
  for (int b = 0xa1; b <= 0xac; ++b) code_points.push_back(b);
  for (int b = 0xae; b <= 0xff; ++b) code_points.push_back(b);
  while (code_points.size() < 256) {
    code_points.push_back(0x100 + static_cast<int>(code_points.size()) - 188);
  }
  std::vector<std::string> tokens;
  for (const int c : code_points) {
    if (c < 0x80) {
      tokens.push_back(std::string(1, static_cast<char>(c)));
    } else {
      tokens.push_back({static_cast<char>(0xc0 | (c >> 6)),
                        static_cast<char>(0x80 | (c & 0x3f))});
    }
  }
  return tokens;
}

std::vector<std::string> SpecialTokens(int64_t vocab_size) {
  std::vector<std::string> tokens = {"<|endoftext|>"};
  for (int64_t i = 257; i < vocab_size; ++i) {
    tokens.push_back(absl::StrCat("<|extra_", i - 257, "|>"));
  }
  return tokens;
}

json TokenizerJson(int64_t vocab_size) {
  json vocab = json::object();
  const std::vector<std::string> bytes = ByteTokens();
  for (size_t i = 0; i < bytes.size(); ++i) vocab[bytes[i]] = i;
  json added = json::array();
  for (const std::string& token : SpecialTokens(vocab_size)) {
    added.push_back({{"id", 256 + added.size()},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocab},
            {"merges", json::array()}}}};
}

json ConfigJson(const TinyModelOptions& options) {
  json config = {{"architectures",
                  {options.architecture == "qwen2" ? "Qwen2ForCausalLM"
                                                   : "LlamaForCausalLM"}},
                 {"model_type", options.architecture},
                 {"vocab_size", options.vocab_size},
                 {"hidden_size", options.hidden_size},
                 {"intermediate_size", options.intermediate_size},
                 {"num_hidden_layers", options.num_layers},
                 {"num_attention_heads", options.num_q_heads},
                 {"num_key_value_heads", options.num_kv_heads},
                 {"head_dim", options.head_dim},
                 {"max_position_embeddings", options.max_positions},
                 {"rms_norm_eps", options.rms_norm_eps},
                 {"rope_theta", options.rope_theta},
                 {"hidden_act", "silu"},
                 {"tie_word_embeddings", options.tied_embeddings}};
  const engine::RopeScaling& scaling = options.rope_scaling;
  if (scaling.kind == engine::RopeScaling::Kind::kLinear) {
    config["rope_scaling"] = {{"rope_type", "linear"},
                              {"factor", scaling.factor}};
  } else if (scaling.kind == engine::RopeScaling::Kind::kLlama3) {
    config["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", scaling.factor},
        {"low_freq_factor", scaling.low_freq_factor},
        {"high_freq_factor", scaling.high_freq_factor},
        {"original_max_position_embeddings", scaling.original_max_positions}};
  }
  if (options.vocab_size > 256) config["eos_token_id"] = 256;
  return config;
}

absl::Status WriteFile(const std::string& path, absl::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return absl::InternalError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

}  // namespace

TinyModel::TinyModel(const TinyModelOptions& options) : options_(options) {
  config_ = {.architecture = options.architecture,
             .vocab_size = options.vocab_size,
             .hidden_size = options.hidden_size,
             .intermediate_size = options.intermediate_size,
             .num_layers = options.num_layers,
             .num_q_heads = options.num_q_heads,
             .num_kv_heads = options.num_kv_heads,
             .head_dim = options.head_dim,
             .max_positions = options.max_positions,
             .rms_norm_eps = options.rms_norm_eps,
             .rope_theta = options.rope_theta,
             .rope_scaling = options.rope_scaling,
             .tied_embeddings = options.tied_embeddings,
             .qkv_bias = options.architecture == "qwen2"};
  if (options.vocab_size > 256) config_.eos_token_ids = {256};
  OVERTURE_CHECK(engine::Validate(config_).ok());

  // mt19937's output is fixed by the standard, the distributions' is not.
  std::mt19937 random(options.seed);
  const auto uniform = [&random] {  // in [-1, 1)
    return static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f;
  };
  for (int32_t layer = 0; layer < options.num_layers; ++layer) {
    for (int r = 0; r < engine::kNumTensorRoles; ++r) {
      const TensorRole role = static_cast<TensorRole>(r);
      if (layer > 0 && !engine::IsPerLayer(role)) continue;
      const auto shape = engine::ExpectedShape(config_, role);
      if (shape.rows == 0) continue;
      // Variance 1 / columns keeps activations near 1; sqrt(3) makes a uniform
      // variable's variance 1.
      float gain = std::sqrt(3.0f / static_cast<float>(shape.columns));
      if (role == TensorRole::kTokenEmbedding) gain = std::sqrt(3.0f);
      if (IsQOrK(role)) gain *= options.qk_gain;
      std::vector<float>& values = weights_[{role, layer}];
      values.resize(shape.rows * shape.columns);
      for (float& value : values) {
        value = uniform();
        value = IsNorm(role) ? 1.0f + 0.25f * value : gain * value;
        value = Rounded(value, options.dtype);
      }
    }
  }
}

absl::Span<const float> TinyModel::Weight(TensorRole role,
                                          int32_t layer) const {
  const auto it = weights_.find({role, engine::IsPerLayer(role) ? layer : 0});
  if (it == weights_.end()) return {};
  return it->second;
}

absl::Status TinyModel::WriteHuggingFace(const std::string& folder,
                                         int num_shards) const {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::InternalError(
        absl::StrCat("cannot create ", folder, ": ", error.message()));
  }
  const std::string prefix = folder + "/";
  OVERTURE_RETURN_IF_ERROR(
      WriteFile(prefix + "config.json", ConfigJson(options_).dump(2)));
  if (options_.vocab_size > 256) {
    OVERTURE_RETURN_IF_ERROR(WriteFile(
        prefix + "tokenizer.json", TokenizerJson(options_.vocab_size).dump(2)));
  }
  std::vector<std::vector<SafetensorsEntry>> shards(num_shards);
  json weight_map = json::object();
  const auto shard_name = [&](int shard) {
    return num_shards == 1 ? std::string("model.safetensors")
                           : absl::StrCat("model-", shard + 1, "-of-",
                                          num_shards, ".safetensors");
  };
  constexpr const char* kDTypeNames[] = {"", "F32", "F16", "BF16"};
  int next_shard = 0;
  for (const auto& [key, values] : weights_) {
    const auto shape = engine::ExpectedShape(config_, key.first);
    std::vector<int64_t> dims = {shape.columns};
    if (shape.rows > 1) dims = {shape.rows, shape.columns};
    const std::string name = engine::HuggingFaceName(key.first, key.second);
    weight_map[name] = shard_name(next_shard);
    shards[next_shard].push_back(
        {.name = name,
         .dtype = kDTypeNames[static_cast<int>(options_.dtype)],
         .shape = dims,
         .data = Encode(values, options_.dtype)});
    next_shard = (next_shard + 1) % num_shards;
  }
  for (int shard = 0; shard < num_shards; ++shard) {
    OVERTURE_RETURN_IF_ERROR(
        WriteFile(prefix + shard_name(shard), MakeSafetensors(shards[shard])));
  }
  if (num_shards == 1) return absl::OkStatus();
  return WriteFile(prefix + "model.safetensors.index.json",
                   json({{"weight_map", weight_map}}).dump(2));
}

absl::Status TinyModel::WriteGguf(const std::string& path) const {
  GgufWriter writer;
  const std::string& arch = options_.architecture;
  const auto key = [&](absl::string_view name) {
    return absl::StrCat(arch, ".", name);
  };
  writer.AddString("general.architecture", arch);
  writer.AddUint32(key("vocab_size"), options_.vocab_size);
  writer.AddUint32(key("embedding_length"), options_.hidden_size);
  writer.AddUint32(key("feed_forward_length"), options_.intermediate_size);
  writer.AddUint32(key("block_count"), options_.num_layers);
  writer.AddUint32(key("attention.head_count"), options_.num_q_heads);
  writer.AddUint32(key("attention.head_count_kv"), options_.num_kv_heads);
  writer.AddUint32(key("attention.key_length"), options_.head_dim);
  writer.AddUint32(key("attention.value_length"), options_.head_dim);
  writer.AddUint32(key("rope.dimension_count"), options_.head_dim);
  writer.AddUint32(key("context_length"), options_.max_positions);
  writer.AddRaw(key("attention.layer_norm_rms_epsilon"),
                GgufWriter::ValueType::kFloat64, Raw(options_.rms_norm_eps));
  writer.AddRaw(key("rope.freq_base"), GgufWriter::ValueType::kFloat64,
                Raw(options_.rope_theta));
  if (options_.rope_scaling.kind == engine::RopeScaling::Kind::kLinear) {
    writer.AddString(key("rope.scaling.type"), "linear");
    writer.AddRaw(key("rope.scaling.factor"), GgufWriter::ValueType::kFloat64,
                  Raw(options_.rope_scaling.factor));
  }
  if (options_.vocab_size > 256) {
    std::vector<std::string> tokens = ByteTokens();
    std::vector<int32_t> types(tokens.size(), 1);  // normal
    for (std::string& token : SpecialTokens(options_.vocab_size)) {
      tokens.push_back(std::move(token));
      types.push_back(3);  // control
    }
    writer.AddString("tokenizer.ggml.model", "gpt2");
    writer.AddString("tokenizer.ggml.pre", "gpt-2");
    writer.AddStrings("tokenizer.ggml.tokens", tokens);
    writer.AddInt32s("tokenizer.ggml.token_type", types);
    writer.AddStrings("tokenizer.ggml.merges", {});
    writer.AddUint32("tokenizer.ggml.eos_token_id", 256);
    writer.AddBool("tokenizer.ggml.add_bos_token", false);
  }
  if (options_.rope_scaling.kind == engine::RopeScaling::Kind::kLlama3) {
    const std::vector<float> divisors = Llama3Divisors(options_);
    writer.AddTensor("rope_freqs.weight", engine::TensorType::kF32,
                     {divisors.size()}, Encode(divisors, DType::kF32));
  }
  for (const auto& [role_and_layer, values] : weights_) {
    const auto& [role, layer] = role_and_layer;
    const auto shape = engine::ExpectedShape(config_, role);
    const bool is_matrix = shape.rows > 1;
    // As the converter does: vectors stay F32.
    const DType dtype = is_matrix ? options_.dtype : DType::kF32;
    constexpr engine::TensorType kTypes[] = {
        engine::TensorType::kF32, engine::TensorType::kF32,
        engine::TensorType::kF16, engine::TensorType::kBF16};
    std::vector<float> stored = values;
    if (arch == "llama" && IsQOrK(role)) {
      stored = Interleave(values, shape.columns, options_.head_dim);
    }
    std::vector<uint64_t> dims = {static_cast<uint64_t>(shape.columns)};
    if (is_matrix) dims.push_back(shape.rows);
    writer.AddTensor(engine::GgufName(role, layer),
                     kTypes[static_cast<int>(dtype)], dims,
                     Encode(stored, dtype));
  }
  return WriteFile(path, writer.Finish());
}

}  // namespace overture::testing
