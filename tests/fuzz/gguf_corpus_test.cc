#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/gguf.h"
#include "engine/gguf_config.h"
#include "gtest/gtest.h"
#include "tests/fuzz/corpus_runner.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace overture::testing {
namespace {

using ValueType = GgufWriter::ValueType;

// Every value type, arrays of each, an array of arrays, every tensor type.
std::string EveryTypeOnce() {
  GgufWriter writer;
  writer.AddRaw("u8", ValueType::kUint8, Raw(uint8_t{200}));
  writer.AddRaw("i8", ValueType::kInt8, Raw(int8_t{-3}));
  writer.AddRaw("u16", ValueType::kUint16, Raw(uint16_t{60000}));
  writer.AddRaw("i16", ValueType::kInt16, Raw(int16_t{-300}));
  writer.AddUint32("general.alignment", 32);
  writer.AddRaw("i32", ValueType::kInt32, Raw(int32_t{-70000}));
  writer.AddFloat32("f32", 1.5f);
  writer.AddBool("bool", true);
  writer.AddString("string", "text");
  writer.AddRaw("u64", ValueType::kUint64, Raw(uint64_t{1} << 40));
  writer.AddRaw("i64", ValueType::kInt64, Raw(int64_t{-1}));
  writer.AddRaw("f64", ValueType::kFloat64, Raw(2.5));
  writer.AddStrings("strings", {"a", "", "ccc"});
  writer.AddInt32s("ints", {1, 2, 3});
  writer.AddRaw("nested", ValueType::kArray,
                absl::StrCat(Raw(ValueType::kArray), Raw(uint64_t{1}),
                             Raw(ValueType::kUint8), Raw(uint64_t{2}), "xy"));
  for (const uint32_t type : {0, 1, 2, 3, 8, 12, 13, 14, 30}) {
    const auto tensor_type = static_cast<engine::TensorType>(type);
    const engine::BlockShape block = engine::BlockShapeOf(tensor_type);
    writer.AddTensor(absl::StrCat("t", type), tensor_type,
                     {static_cast<uint64_t>(block.num_elements), 1},
                     std::string(block.num_bytes, '\x3c'));
  }
  return writer.Finish();
}

std::string WholeModel() {
  const TempDir dir;
  TinyModelOptions options{.vocab_size = 4,
                           .hidden_size = 4,
                           .intermediate_size = 2,
                           .num_layers = 1,
                           .num_q_heads = 2,
                           .num_kv_heads = 1,
                           .head_dim = 2};
  options.rope_scaling.kind = engine::RopeScaling::Kind::kLlama3;
  const std::string path = dir.Join("tiny.gguf");
  OVERTURE_EXPECT_OK(TinyModel(options).WriteGguf(path));
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Nested arrays as deep as 12 bytes a level allow.
std::string DeepArrays() {
  GgufWriter writer;
  std::string bytes;
  for (int i = 0; i < 200; ++i) {
    absl::StrAppend(&bytes, Raw(ValueType::kArray), Raw(uint64_t{1}));
  }
  writer.AddRaw("deep", ValueType::kArray, bytes);
  return writer.Finish();
}

TEST(GgufFuzzTest, DamagedFilesNeitherCrashNorCostMemory) {
  const std::string model = WholeModel();
  const std::string every_type = EveryTypeOnce();
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto gguf, engine::Gguf::Parse(model));
  OVERTURE_ASSERT_OK(engine::ReadGgufConfig(gguf));
  OVERTURE_ASSERT_OK(engine::Gguf::Parse(every_type));
  RunCorpus({.name = "gguf",
             .seeds = {every_type, model, DeepArrays()},
             .dictionary = {"general.alignment", "rope_freqs.weight",
                            std::string("\x09\0\0\0", 4),
                            std::string("\x08\0\0\0", 4)},
             .max_bytes_per_input_byte = 8,
             .base_bytes = 8 << 10});
}

}  // namespace
}  // namespace overture::testing
