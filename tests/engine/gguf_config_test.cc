#include "engine/gguf_config.h"

#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::GgufWriter;
using ::overture::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// Without context_length, so that a test can choose it, and without tensors.
GgufWriter Keys(const std::string& arch = "llama") {
  GgufWriter writer;
  writer.AddString("general.architecture", arch);
  writer.AddString("general.name", "Tiny");
  writer.AddUint32(arch + ".embedding_length", 64);
  writer.AddUint32(arch + ".feed_forward_length", 96);
  writer.AddUint32(arch + ".block_count", 3);
  writer.AddUint32(arch + ".attention.head_count", 4);
  writer.AddFloat32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  return writer;
}

absl::StatusOr<ModelConfig> Read(GgufWriter writer) {
  writer.AddUint32("llama.context_length", 8192);
  writer.AddUint32("qwen2.context_length", 8192);
  writer.AddTensor("token_embd.weight", TensorType::kF32, {64, 2},
                   std::string(512, '\0'));
  const std::string bytes = writer.Finish();
  const absl::StatusOr<Gguf> gguf = Gguf::Parse(bytes);
  if (!gguf.ok()) return gguf.status();
  return ReadGgufConfig(*gguf);
}

TEST(GgufConfigTest, ReadsTheSizesAndFillsInTheDefaults) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ModelConfig config, Read(Keys()));
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.name, "Tiny");
  EXPECT_EQ(config.vocab_size, 2);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_EQ(config.num_q_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.max_positions, 8192);
  EXPECT_EQ(config.rms_norm_eps, double{1e-5f});
  EXPECT_EQ(config.rope_theta, 1e4);
  EXPECT_EQ(config.rope_scaling, RopeScaling{});
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_FALSE(config.qkv_bias);
}

TEST(GgufConfigTest, ExplicitKeysAndTensorsWin) {
  GgufWriter writer = Keys("qwen2");
  writer.AddUint32("qwen2.attention.head_count_kv", 2);
  writer.AddUint32("qwen2.attention.key_length", 32);
  writer.AddUint32("qwen2.attention.value_length", 32);
  writer.AddUint32("qwen2.rope.dimension_count", 32);
  writer.AddFloat32("qwen2.rope.freq_base", 1e6f);
  writer.AddUint32("tokenizer.ggml.eos_token_id", 1);
  writer.AddUint32("tokenizer.ggml.eot_token_id", 0);
  writer.AddUint32("tokenizer.ggml.eom_token_id", 1);
  writer.AddTensor("output.weight", TensorType::kF32, {1}, "1234");
  writer.AddTensor("blk.0.attn_q.bias", TensorType::kF32, {1}, "1234");
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ModelConfig config, Read(writer));
  EXPECT_EQ(config.architecture, "qwen2");
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(1, 0));
}

TEST(GgufConfigTest, OtherArchitecturesAreRefusedWithTheList) {
  EXPECT_THAT(Read(Keys("gemma")),
              StatusIs(kUnimplemented,
                       AllOf(HasSubstr("'gemma'"), HasSubstr("llama, qwen2"))));
}

TEST(GgufConfigTest, WhatWouldChangeTheOutputIsRefused) {
  const std::pair<const char*, uint32_t> cases[] = {
      {"llama.expert_count", 8},
      {"llama.attention.value_length", 8},
      {"llama.rope.dimension_count", 8},
      {"llama.attention.sliding_window", 4096}};
  for (const auto& [key, value] : cases) {
    GgufWriter writer = Keys();
    writer.AddUint32(key, value);
    EXPECT_THAT(Read(writer), StatusIs(kUnimplemented, HasSubstr(key)));
  }
  GgufWriter causal = Keys();
  causal.AddBool("llama.attention.causal", false);
  EXPECT_THAT(Read(causal), StatusIs(kUnimplemented, HasSubstr("causal")));
}

TEST(GgufConfigTest, MissingAndInconsistentKeysAreNamed) {
  EXPECT_THAT(Read(GgufWriter()),
              StatusIs(kInvalid, HasSubstr("general.architecture")));
  GgufWriter bare;
  bare.AddString("general.architecture", "llama");
  EXPECT_THAT(Read(bare),
              StatusIs(kInvalid, HasSubstr("llama.embedding_length")));
  GgufWriter vocab = Keys();
  vocab.AddUint32("llama.vocab_size", 5);
  EXPECT_THAT(Read(vocab),
              StatusIs(kInvalid, HasSubstr("llama.vocab_size' is 5")));
  GgufWriter heads = Keys();
  heads.AddUint32("llama.attention.head_count_kv", 3);
  EXPECT_THAT(Read(heads), StatusIs(kInvalid, HasSubstr("num_kv_heads, 3")));
  GgufWriter eos = Keys();
  eos.AddUint32("tokenizer.ggml.eos_token_id", 2);
  EXPECT_THAT(Read(eos), StatusIs(kInvalid, HasSubstr("eos_token_ids is 2")));
}

TEST(GgufConfigTest, LinearScalingIsReadAndOtherKindsRefused) {
  GgufWriter linear = Keys();
  linear.AddString("llama.rope.scaling.type", "linear");
  linear.AddFloat32("llama.rope.scaling.factor", 4.0f);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ModelConfig config, Read(linear));
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(config.rope_scaling.factor, 4.0);

  GgufWriter older = Keys();
  older.AddFloat32("llama.rope.scale_linear", 2.0f);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ModelConfig old_config, Read(older));
  EXPECT_EQ(old_config.rope_scaling.factor, 2.0);

  GgufWriter none = Keys();
  none.AddString("llama.rope.scaling.type", "none");
  none.AddFloat32("llama.rope.scaling.factor", 4.0f);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ModelConfig unscaled, Read(none));
  EXPECT_EQ(unscaled.rope_scaling, RopeScaling{});

  GgufWriter yarn = Keys();
  yarn.AddString("llama.rope.scaling.type", "yarn");
  EXPECT_THAT(Read(yarn), StatusIs(kUnimplemented, HasSubstr("yarn")));
  GgufWriter attention = Keys();
  attention.AddFloat32("llama.rope.scaling.attn_factor", 1.2f);
  EXPECT_THAT(Read(attention), StatusIs(kUnimplemented));
}

// `Llama-3.2-1B`'s rope_freqs.weight as the converter writes it: head dim 64,
// theta 500,000, factor 32, low 1, high 4, context 8,192. Computed by
// convert_hf_to_gguf.py's formula in Python.
const std::vector<float>& Llama32Divisors() {
  static const std::vector<float> divisors = {1,
                                              1,
                                              1,
                                              1,
                                              1,
                                              1,
                                              1,
                                              1,
                                              1,
                                              1,
                                              1,
                                              1,
                                              1,
                                              1,
                                              1,
                                              1.651329279f,
                                              3.292262077f,
                                              9.666728973f,
                                              32,
                                              32,
                                              32,
                                              32,
                                              32,
                                              32,
                                              32,
                                              32,
                                              32,
                                              32,
                                              32,
                                              32,
                                              32,
                                              32};
  return divisors;
}

TEST(RopeDivisorsTest, Llama3ScalingIsRecovered) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RopeScaling scaling,
      RopeScalingFromDivisors(5e5, Llama32Divisors()));
  EXPECT_EQ(scaling, (RopeScaling{.kind = RopeScaling::Kind::kLlama3,
                                  .factor = 32,
                                  .low_freq_factor = 1,
                                  .high_freq_factor = 4,
                                  .original_max_positions = 8192}));
}

TEST(RopeDivisorsTest, OtherParametersAreRecoveredUpToTheirCommonScale) {
  // Factor 4, low 2, high 6, context 32,768, head dim 128, theta 10,000: the
  // same frequencies as low 1, high 3, context 16,384.
  const std::vector<float> divisors = {1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1,
                                       1.172541976f,
                                       1.385460973f,
                                       1.643972874f,
                                       1.960797787f,
                                       2.353581667f,
                                       2.847540855f,
                                       3.480015278f,
                                       4,
                                       4,
                                       4,
                                       4,
                                       4,
                                       4,
                                       4,
                                       4,
                                       4};
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RopeScaling scaling,
                                RopeScalingFromDivisors(1e4, divisors));
  EXPECT_EQ(scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(scaling.factor, 4);
  EXPECT_EQ(scaling.low_freq_factor, 1);
  // Two divisors, each rounded to 2^-24, fix the line whose zero is high.
  EXPECT_NEAR(scaling.high_freq_factor, 3, 1e-4);
  EXPECT_EQ(scaling.original_max_positions, 16384);
}

TEST(RopeDivisorsTest, EqualDivisorsAreLinearScalingOrNone) {
  EXPECT_EQ(RopeScalingFromDivisors(1e4, {1, 1, 1, 1})->kind,
            RopeScaling::Kind::kNone);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RopeScaling scaling,
                                RopeScalingFromDivisors(1e4, {4, 4, 4, 4}));
  EXPECT_EQ(scaling.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(scaling.factor, 4);
}

TEST(RopeDivisorsTest, ForeignDivisorsAreRefusedNotIgnored) {
  std::vector<float> bent = Llama32Divisors();
  bent[16] *= 1.001f;
  for (const std::vector<float>& divisors :
       {bent, std::vector<float>{}, std::vector<float>{1, 0},
        std::vector<float>{1, -2}, std::vector<float>{1, 1e30f, 2, 3},
        std::vector<float>{1.1f, 1.3f, 2.0f, 7.0f}}) {
    EXPECT_THAT(RopeScalingFromDivisors(5e5, divisors),
                StatusIs(kUnimplemented, HasSubstr("rope_freqs.weight")));
  }
}

TEST(RopeDivisorsTest, TheTensorIsHonouredInAFile) {
  const auto add = [](GgufWriter& writer, const std::vector<float>& divisors) {
    std::string bytes;
    for (const float divisor : divisors) {
      bytes += ::overture::testing::Raw(divisor);
    }
    writer.AddTensor("rope_freqs.weight", TensorType::kF32, {divisors.size()},
                     bytes);
  };
  GgufWriter writer = Keys();
  writer.AddUint32("llama.attention.key_length", 64);
  writer.AddUint32("llama.attention.value_length", 64);
  writer.AddFloat32("llama.rope.freq_base", 5e5f);
  add(writer, Llama32Divisors());
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ModelConfig config, Read(writer));
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(config.rope_scaling.factor, 32);

  GgufWriter short_tensor = Keys();
  add(short_tensor, {1, 1});
  EXPECT_THAT(Read(short_tensor),
              StatusIs(kInvalid, HasSubstr("has shape [2], expected [8]")));

  writer.AddFloat32("llama.rope.scaling.factor", 2.0f);
  EXPECT_THAT(Read(writer), StatusIs(kUnimplemented, HasSubstr("both scale")));
}

}  // namespace
}  // namespace overture::engine
