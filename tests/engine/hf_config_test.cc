#include "engine/hf_config.h"

#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using nlohmann::json;
using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

json Llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 128},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 8192}};
}
json Of(absl::string_view architecture) {
  json config = Llama();
  config["architectures"] = {std::string(architecture)};
  return config;
}

absl::StatusOr<ModelConfig> Parse(const json& config) {
  return ParseHfConfig(config.dump());
}
void ExpectRefused(const json& config, absl::StatusCode code,
                   const std::string& message) {
  EXPECT_THAT(Parse(config), StatusIs(code, HasSubstr(message)));
}

TEST(HfConfigTest, ReadsTheSizesAndFillsInTheDefaults) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ModelConfig config, Parse(Llama()));
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.vocab_size, 128);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_EQ(config.num_q_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.max_positions, 8192);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope_theta, 1e4);
  EXPECT_EQ(config.rope_scaling, RopeScaling{});
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_THAT(config.eos_token_ids, IsEmpty());
}

TEST(HfConfigTest, ExplicitValuesWin) {
  json root = Llama();
  root["head_dim"] = 32;
  root["num_key_value_heads"] = nullptr;
  root["rms_norm_eps"] = 1e-5;
  root["rope_theta"] = 5e5;
  root["tie_word_embeddings"] = true;
  root["eos_token_id"] = {7, 9};
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ModelConfig config, Parse(root));
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 5e5);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(7, 9));
}

TEST(HfConfigTest, OtherArchitecturesAreRefusedWithTheList) {
  ExpectRefused(Of("GemmaForCausalLM"), kUnimplemented,
                "GemmaForCausalLM; supported: LlamaForCausalLM");
  json typed = Llama();
  typed.erase("architectures");
  typed["model_type"] = "qwen2";
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ModelConfig config, Parse(typed));
  EXPECT_EQ(config.architecture, "qwen2");
  typed["model_type"] = "gpt_neox";
  ExpectRefused(typed, kUnimplemented, "gpt_neox; supported: llama");
  typed.erase("model_type");
  ExpectRefused(typed, kInvalid, "'model_type' is missing");
}

TEST(HfConfigTest, Qwen2HasQkvBiases) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ModelConfig config,
                                Parse(Of("Qwen2ForCausalLM")));
  EXPECT_EQ(config.architecture, "qwen2");
  EXPECT_TRUE(config.qkv_bias);
}

TEST(HfConfigTest, ASlidingWindowInUseIsRefused) {
  json mistral = Of("MistralForCausalLM");
  // MistralConfig's default is 4,096.
  ExpectRefused(mistral, kUnimplemented, "'sliding_window' is 4096");
  mistral["sliding_window"] = nullptr;
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ModelConfig config, Parse(mistral));
  EXPECT_EQ(config.architecture, "llama");
  mistral["sliding_window"] = 1024;
  ExpectRefused(mistral, kUnimplemented, "'sliding_window' is 1024");
  mistral["sliding_window"] = 8192;  // no position can leave it
  EXPECT_THAT(Parse(mistral), IsOk());

  json qwen = Of("Qwen2ForCausalLM");
  qwen["sliding_window"] = 1024;
  EXPECT_THAT(Parse(qwen), IsOk());
  qwen["use_sliding_window"] = true;
  ExpectRefused(qwen, kUnimplemented, "'sliding_window' is 1024");
  qwen["use_sliding_window"] = false;
  qwen["layer_types"] = {"full_attention", "sliding_attention"};
  ExpectRefused(qwen, kUnimplemented, "sliding_attention");
}

TEST(HfConfigTest, RopeScalingIsReadInBothForms) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const RopeScaling expected{.kind = RopeScaling::Kind::kLlama3,
                             .factor = 8.0,
                             .low_freq_factor = 1.0,
                             .high_freq_factor = 4.0,
                             .original_max_positions = 8192};
  json older = Llama();
  older["rope_theta"] = 5e5;
  older["rope_scaling"] = llama3;
  json newer = Llama();
  newer["rope_parameters"] = llama3;
  newer["rope_parameters"]["rope_theta"] = 5e5;
  json both = older;
  both["rope_parameters"] = newer["rope_parameters"];
  for (const json& root : {older, newer, both}) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(const ModelConfig config, Parse(root));
    EXPECT_EQ(config.rope_theta, 5e5);
    EXPECT_EQ(config.rope_scaling, expected);
  }
  both["rope_theta"] = 1e4;
  ExpectRefused(both, kInvalid, "contradicts");
  both["rope_theta"] = 5e5;
  both["rope_scaling"]["factor"] = 4.0;
  ExpectRefused(both, kInvalid, "contradicts");

  json linear = Llama();
  linear["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ModelConfig config, Parse(linear));
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(config.rope_scaling.factor, 2.0);
}

TEST(HfConfigTest, UnsupportedOrIncompleteRopeIsRefused) {
  json root = Llama();
  root["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  ExpectRefused(root, kUnimplemented,
                "yarn; supported: default, linear, llama3");
  root["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8.0}};
  ExpectRefused(root, kInvalid, "'low_freq_factor' is missing");
  root["rope_scaling"] = 3;
  ExpectRefused(root, kInvalid, "'rope_scaling' is number");
  root.erase("rope_scaling");
  root["rope_parameters"] = {{"full_attention", {{"rope_theta", 1e4}}}};
  ExpectRefused(root, kUnimplemented, "full_attention");
  root["rope_parameters"] = {{"partial_rotary_factor", 0.5}};
  ExpectRefused(root, kUnimplemented, "partial_rotary_factor");
}

TEST(HfConfigTest, WhatWouldChangeTheOutputIsRefused) {
  const std::pair<const char*, json> cases[] = {
      {"hidden_act", "gelu"},
      {"attention_bias", true},
      {"mlp_bias", true},
      {"partial_rotary_factor", 0.25},
      {"quantization_config", {{"quant_method", "gptq"}}}};
  for (const auto& [key, value] : cases) {
    json root = Llama();
    root[key] = value;
    ExpectRefused(root, kUnimplemented, key);
  }
}

TEST(HfConfigTest, MissingAndMalformedKeysAreNamed) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "max_position_embeddings"}) {
    json root = Llama();
    root.erase(key);
    ExpectRefused(root, kInvalid, key);
    root[key] = "12";
    ExpectRefused(root, kInvalid, key);
    root[key] = 0;
    EXPECT_THAT(Parse(root), StatusIs(kInvalid)) << key;
    root[key] = -1;
    EXPECT_THAT(Parse(root), StatusIs(kInvalid)) << key;
    root[key] = int64_t{1} << 62;
    EXPECT_THAT(Parse(root), StatusIs(kInvalid)) << key;
  }
  json root = Llama();
  root["hidden_size"] = 66;  // over 4 heads
  ExpectRefused(root, kInvalid, "'head_dim' is missing");
  for (const json& eos : {json("</s>"), json(-1), json({1, "a"}),
                          json(int64_t{1} << 40), json(1.5)}) {
    root = Llama();
    root["eos_token_id"] = eos;
    ExpectRefused(root, kInvalid, "eos_token_id");
  }
  EXPECT_THAT(ParseHfConfig("[]"), StatusIs(kInvalid));
  EXPECT_THAT(ParseHfConfig(std::string(2 << 20, ' ')),
              StatusIs(kInvalid, HasSubstr("the limit is")));
}

}  // namespace
}  // namespace overture::engine
