#include <string>

#include "gtest/gtest.h"
#include "tests/fuzz/corpus_runner.h"
#include "tests/support/safetensors_writer.h"

namespace overture::testing {
namespace {

TEST(SafetensorsFuzzTest, DamagedFilesNeitherCrashNorCostMemory) {
  const std::string file = MakeSafetensors(
      {{.name = "a",
        .dtype = "F32",
        .shape = {2, 3},
        .data = std::string(24, 1)},
       {.name = "scalar", .dtype = "BF16", .shape = {}, .data = "xx"},
       {.name = "empty", .dtype = "F16", .shape = {0, 4}, .data = ""}});
  const std::string index =
      R"({"metadata":{"total_size":1},"weight_map":)"
      R"({"a":"model-1.safetensors","b":"model-2.safetensors"}})";
  const std::string config = R"({"architectures":["LlamaForCausalLM"],
    "vocab_size":8,"hidden_size":8,"intermediate_size":8,"head_dim":4,
    "num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,
    "max_position_embeddings":64,"rope_theta":1e4,"eos_token_id":[1,2],
    "rope_parameters":{"rope_type":"llama3","factor":8.0,"rope_theta":1e4,
    "low_freq_factor":1,"high_freq_factor":4,
    "original_max_position_embeddings":32}})";
  RunCorpus(
      {.name = "safetensors",
       .seeds = {file, index, config,
                 // 8 bytes are the header's size.
                 MakeRawSafetensors(std::string(2000, '['), ""),
                 std::string(10'000, '['), "{\"a\":" + std::string(2000, '{')},
       .max_positions = 1024,
       .dictionary = {"\"dtype\":\"F32\"", "\"shape\":[",
                      "\"data_offsets\":[0,", "18446744073709551615", "-1",
                      "1e999", "null", "{", "}", "[", "]", "\"", "\\u0000",
                      "\xff"}});
}

}  // namespace
}  // namespace overture::testing
