#include "engine/model_config.h"

#include <functional>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig Good() {
  return {.architecture = "llama",
          .vocab_size = 100,
          .hidden_size = 64,
          .intermediate_size = 128,
          .num_layers = 2,
          .num_q_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 16,
          .max_positions = 1024,
          .eos_token_ids = {0, 99}};
}

TEST(ModelConfigTest, AcceptsBothArchitectures) {
  ModelConfig config = Good();
  EXPECT_THAT(Validate(config), IsOk());
  config.architecture = "qwen2";
  EXPECT_THAT(Validate(config), IsOk());
}

TEST(ModelConfigTest, OtherArchitecturesAreRefusedWithTheList) {
  ModelConfig config = Good();
  config.architecture = "phi\n3";
  EXPECT_THAT(Validate(config),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("'phi\\n3'"),
                             HasSubstr("supported: llama, qwen2"))));
}

TEST(ModelConfigTest, EachBadFieldIsRefusedByName) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  using Kind = RopeScaling::Kind;
  struct Case {
    std::string field;
    std::function<void(ModelConfig&)> spoil;
  };
  const Case cases[] = {
      {"vocab_size", [](auto& c) { c.vocab_size = 0; }},
      {"hidden_size", [](auto& c) { c.hidden_size = int64_t{1} << 40; }},
      {"intermediate_size", [](auto& c) { c.intermediate_size = -1; }},
      {"num_layers", [](auto& c) { c.num_layers = 4097; }},
      {"num_q_heads", [](auto& c) { c.num_q_heads = 0; }},
      {"num_kv_heads", [](auto& c) { c.num_kv_heads = 0; }},
      {"num_q_heads is 4", [](auto& c) { c.num_kv_heads = 3; }},
      {"head_dim is 15", [](auto& c) { c.head_dim = 15; }},
      {"head_dim", [](auto& c) { c.head_dim = 2048; }},
      {"max_positions", [](auto& c) { c.max_positions = int64_t{1} << 31; }},
      {"rms_norm_eps", [](auto& c) { c.rms_norm_eps = 0; }},
      {"rms_norm_eps", [&](auto& c) { c.rms_norm_eps = nan; }},
      {"rope_theta", [](auto& c) { c.rope_theta = 0.5; }},
      {"rope_theta", [&](auto& c) { c.rope_theta = inf; }},
      {"rope_scaling.factor",
       [](auto& c) { c.rope_scaling = {.kind = Kind::kLinear, .factor = 0}; }},
      {"rope_scaling.factor",
       [&](auto& c) {
         c.rope_scaling = {.kind = Kind::kLlama3, .factor = nan};
       }},
      {"high_freq_factor",
       [](auto& c) {
         c.rope_scaling = {.kind = Kind::kLlama3,
                           .low_freq_factor = 4,
                           .high_freq_factor = 4};
       }},
      {"original_max_positions",
       [](auto& c) {
         c.rope_scaling = {.kind = Kind::kLlama3, .original_max_positions = 0};
       }},
      {"eos_token_ids is 100",
       [](auto& c) {
         c.eos_token_ids = {1, 100};
       }},
  };
  for (const Case& c : cases) {
    ModelConfig config = Good();
    c.spoil(config);
    EXPECT_THAT(Validate(config), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr(c.field)));
  }
}

}  // namespace
}  // namespace overture::engine
