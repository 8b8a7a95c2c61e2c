#include "engine/gguf.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::GgufWriter;
using ::overture::testing::Raw;
using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ValueType = Gguf::ValueType;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

void ExpectRefused(const GgufWriter& writer, absl::StatusCode code,
                   const std::string& message) {
  EXPECT_THAT(Gguf::Parse(writer.Finish()), StatusIs(code, HasSubstr(message)));
}

TEST(GgufTest, ReadsEveryValueType) {
  GgufWriter writer;
  writer.version = 2;
  writer.AddRaw("u8", ValueType::kUint8, Raw(uint8_t{200}));
  writer.AddRaw("i8", ValueType::kInt8, Raw(int8_t{-3}));
  writer.AddRaw("u16", ValueType::kUint16, Raw(uint16_t{60000}));
  writer.AddRaw("i16", ValueType::kInt16, Raw(int16_t{-300}));
  writer.AddUint32("u32", 4'000'000'000);
  writer.AddRaw("i32", ValueType::kInt32, Raw(int32_t{-70000}));
  writer.AddRaw("u64", ValueType::kUint64, Raw(uint64_t{1} << 40));
  writer.AddRaw("i64", ValueType::kInt64, Raw(int64_t{-1}));
  writer.AddFloat32("f32", 1.5f);
  writer.AddRaw("f64", ValueType::kFloat64, Raw(2.5));
  writer.AddBool("bool", true);
  writer.AddString("string", "text");
  writer.AddStrings("strings", {"a", "", "ccc"});
  writer.AddInt32s("ints", {1, -2, 3});
  const std::string bytes = writer.Finish();
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Gguf gguf, Gguf::Parse(bytes));
  EXPECT_EQ(gguf.version(), 2u);
  EXPECT_EQ(gguf.keys().size(), 14u);
  EXPECT_EQ(*gguf.GetInt("u8"), 200);
  EXPECT_EQ(*gguf.GetInt("i8"), -3);
  EXPECT_EQ(*gguf.GetInt("u16"), 60000);
  EXPECT_EQ(*gguf.GetInt("i16"), -300);
  EXPECT_EQ(*gguf.GetInt("u32"), 4'000'000'000);
  EXPECT_EQ(*gguf.GetInt("i32"), -70000);
  EXPECT_EQ(*gguf.GetInt("u64"), int64_t{1} << 40);
  EXPECT_EQ(*gguf.GetInt("i64"), -1);
  EXPECT_EQ(*gguf.GetDouble("f32"), 1.5);
  EXPECT_EQ(*gguf.GetDouble("f64"), 2.5);
  EXPECT_EQ(*gguf.GetDouble("i8"), -3.0);
  EXPECT_EQ(*gguf.GetBool("bool"), true);
  EXPECT_EQ(*gguf.GetString("string"), "text");
  EXPECT_THAT(*gguf.GetStrings("strings"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(*gguf.GetInts("ints"), ElementsAre(1, -2, 3));
  EXPECT_THAT(*gguf.GetDoubles("ints"), ElementsAre(1.0, -2.0, 3.0));
}

TEST(GgufTest, GettersTellMissingFromWrong) {
  GgufWriter writer;
  writer.AddString("text", "7");
  writer.AddInt32s("ints", {1});
  writer.AddRaw("big", ValueType::kUint64,
                Raw(std::numeric_limits<uint64_t>::max()));
  const std::string bytes = writer.Finish();
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Gguf gguf, Gguf::Parse(bytes));
  EXPECT_THAT(gguf.GetInt("absent"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'absent'")));
  EXPECT_THAT(gguf.GetInt("text"),
              StatusIs(kInvalid, HasSubstr("'text' is string")));
  EXPECT_THAT(gguf.GetInt("big"), StatusIs(kInvalid, HasSubstr("uint64")));
  EXPECT_THAT(gguf.GetInt("ints"), StatusIs(kInvalid, HasSubstr("array")));
  EXPECT_THAT(gguf.GetBool("text"), StatusIs(kInvalid));
  EXPECT_THAT(gguf.GetString("ints"), StatusIs(kInvalid));
  EXPECT_THAT(gguf.GetStrings("ints"), StatusIs(kInvalid));
  EXPECT_THAT(gguf.GetInts("text"), StatusIs(kInvalid));
}

TEST(GgufTest, TensorsAreViewsOfTheirBytes) {
  GgufWriter writer;
  writer.AddTensor("first", TensorType::kF16, {3}, "abcdef");
  writer.AddTensor("second", TensorType::kQ8_0, {32, 2}, std::string(68, 'x'));
  const std::string bytes = writer.Finish();
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Gguf gguf, Gguf::Parse(bytes));
  ASSERT_EQ(gguf.tensors().size(), 2u);
  EXPECT_EQ(gguf.FindTensor("first")->data, "abcdef");
  const Gguf::Tensor* second = gguf.FindTensor("second");
  EXPECT_EQ(second->num_dims, 2);
  EXPECT_EQ(second->dims[0], 32);
  EXPECT_EQ(second->dims[1], 2);
  EXPECT_EQ(second->NumElements(), 64);
  EXPECT_EQ(second->data, std::string(68, 'x'));
  EXPECT_EQ(gguf.FindTensor("third"), nullptr);
}

TEST(GgufTest, TheAlignmentKeyMovesTheData) {
  GgufWriter writer;
  writer.alignment = 8;
  writer.AddUint32("general.alignment", 8);
  writer.AddTensor("a", TensorType::kF32, {1}, "1234");
  writer.AddTensor("b", TensorType::kF32, {1}, "5678");
  const std::string bytes = writer.Finish();
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Gguf gguf, Gguf::Parse(bytes));
  EXPECT_EQ(gguf.FindTensor("b")->data, "5678");
}

TEST(GgufTest, OtherFormatsAndVersionsAreRefusedByName) {
  EXPECT_THAT(Gguf::Parse("ggml"), StatusIs(kInvalid, HasSubstr("magic")));
  EXPECT_THAT(Gguf::Parse(""), StatusIs(kInvalid, HasSubstr("magic")));
  GgufWriter writer;
  writer.version = 1;
  ExpectRefused(writer, kUnimplemented, "version 1");
  writer.version = 0x03000000;
  ExpectRefused(writer, kUnimplemented, "big endian");
}

TEST(GgufTest, ClaimedCountsAreHeldAgainstTheFile) {
  GgufWriter writer;
  writer.AddUint32("a", 1);
  writer.extra_entries = int64_t{1} << 60;
  ExpectRefused(writer, kInvalid, "metadata entries");
  writer.extra_entries = 0;
  writer.extra_tensors = int64_t{1} << 60;
  ExpectRefused(writer, kInvalid, "tensors");
}

TEST(GgufTest, HostileLengthsAreHeldAgainstTheFile) {
  const std::string huge = Raw(std::numeric_limits<uint64_t>::max() - 7);
  GgufWriter string_writer;
  string_writer.AddRaw("text", ValueType::kString, huge);
  ExpectRefused(string_writer, kInvalid, "key 'text'");

  for (const ValueType type :
       {ValueType::kUint8, ValueType::kUint64, ValueType::kString}) {
    GgufWriter writer;
    writer.AddRaw("list", ValueType::kArray, absl::StrCat(Raw(type), huge));
    ExpectRefused(writer, kInvalid, "key 'list'");
  }
}

TEST(GgufTest, UnknownValueTypesAndDeepArraysAreRefused) {
  GgufWriter unknown;
  unknown.AddRaw("odd", static_cast<ValueType>(13), "x");
  ExpectRefused(unknown, kInvalid, "value type 13");

  GgufWriter deep;
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) {
    absl::StrAppend(&bytes, Raw(ValueType::kArray), Raw(uint64_t{1}));
  }
  deep.AddRaw("deep", ValueType::kArray, bytes);
  ExpectRefused(deep, kInvalid, "nested deeper");
}

TEST(GgufTest, DuplicatesAreRefused) {
  GgufWriter keys;
  keys.AddUint32("twice", 1);
  keys.AddUint32("twice", 2);
  ExpectRefused(keys, kInvalid, "'twice' appears twice");

  GgufWriter tensors;
  tensors.AddTensor("twice", TensorType::kF32, {1}, "1234");
  tensors.AddTensor("twice", TensorType::kF32, {1}, "5678");
  ExpectRefused(tensors, kInvalid, "'twice' appears twice");
}

TEST(GgufTest, BadAlignmentsAreRefused) {
  for (const uint32_t alignment : {0u, 3u, 0x80000000u}) {
    GgufWriter writer;
    writer.AddUint32("general.alignment", alignment);
    ExpectRefused(writer, kInvalid, "general.alignment");
  }
}

TEST(GgufTest, UnsupportedTensorTypesAreNamedWithTheSupportedOnes) {
  GgufWriter writer;
  writer.AddTensorEntry("q", 10, {256}, 0);  // Q2_K
  ExpectRefused(writer, kUnimplemented, "type 10; supported: F32, F16, BF16");
}

TEST(GgufTest, ImpossibleShapesAreRefused) {
  const std::vector<std::vector<uint64_t>> shapes = {
      {},
      {1, 1, 1, 1, 1},
      {0},
      {uint64_t{1} << 63},
      {uint64_t{1} << 32, uint64_t{1} << 32},  // wraps to 0
      {std::numeric_limits<uint64_t>::max(), 2}};
  for (const std::vector<uint64_t>& shape : shapes) {
    GgufWriter writer;
    writer.AddTensorEntry("bad", 0, shape, 0);
    ExpectRefused(writer, kInvalid, "tensor 'bad'");
  }
  GgufWriter partial;
  partial.AddTensorEntry("bad", 8, {33}, 0);
  ExpectRefused(partial, kInvalid, "multiple of 32");
}

TEST(GgufTest, TensorsMustLieInsideTheFile) {
  // 4 bytes at these offsets of 4 bytes of data.
  for (const uint64_t offset : {uint64_t{32}, uint64_t{1} << 40,
                                std::numeric_limits<uint64_t>::max() - 31}) {
    GgufWriter writer;
    writer.AddTensor("good", TensorType::kF32, {1}, "1234");
    writer.AddTensorEntry("bad", 0, {1}, offset);
    ExpectRefused(writer, kInvalid, "tensor 'bad' takes 4 bytes");
  }
  GgufWriter misaligned;
  misaligned.AddTensorEntry("bad", 0, {1}, 4);
  ExpectRefused(misaligned, kInvalid, "alignment 32");
}

TEST(GgufTest, OverlappingTensorsAreRefused) {
  GgufWriter writer;
  writer.AddTensor("a", TensorType::kF32, {16}, std::string(64, 'x'));
  writer.AddTensorEntry("b", 0, {1}, 32);
  ExpectRefused(writer, kInvalid, "'a' and 'b' overlap");
}

TEST(GgufTest, NamesFromTheFileAreEscapedAndShortened) {
  GgufWriter writer;
  writer.AddRaw(absl::StrCat("\n\x1b", std::string(1000, 'k')),
                static_cast<ValueType>(99), "");
  const auto result = Gguf::Parse(writer.Finish());
  EXPECT_THAT(result, StatusIs(kInvalid, HasSubstr("\\n\\x1b")));
  EXPECT_LT(result.status().message().size(), 400u);
}

}  // namespace
}  // namespace overture::engine
