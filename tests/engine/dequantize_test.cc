#include "engine/dequantize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/gguf.h"
#include "engine/mapped_file.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

constexpr TensorType kAllTypes[] = {
    TensorType::kF32,  TensorType::kF16,  TensorType::kBF16,
    TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1,
    TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K};

class DequantizeGoldenTest : public ::testing::TestWithParam<TensorType> {};

// The file and how it was made: tests/goldens/make_dequantize.py.
TEST_P(DequantizeGoldenTest, EqualsTheReferenceImplementation) {
  const std::string name(Name(GetParam()));
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const MappedFile file, MappedFile::Open("tests/goldens/dequantize.gguf"));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Gguf gguf, Gguf::Parse(file.bytes()));
  const Gguf::Tensor* blocks = gguf.FindTensor(name);
  const Gguf::Tensor* golden = gguf.FindTensor(absl::StrCat(name, ".expected"));
  ASSERT_NE(blocks, nullptr);
  ASSERT_NE(golden, nullptr);
  ASSERT_EQ(blocks->type, GetParam());
  ASSERT_EQ(blocks->NumElements(), golden->NumElements());

  std::vector<float> actual(blocks->NumElements());
  std::vector<float> expected(actual.size());
  OVERTURE_ASSERT_OK(
      Dequantize(blocks->type, blocks->data, absl::MakeSpan(actual)));
  OVERTURE_ASSERT_OK(
      Dequantize(golden->type, golden->data, absl::MakeSpan(expected)));
  const int64_t block = BlockShapeOf(GetParam()).num_elements;
  for (size_t begin = 0; begin < actual.size(); begin += block) {
    // At most three products and one sum, each rounded or fused: 4 * 2^-24 of
    // the largest intermediate, d * 15 or the minimum, which is at most twice
    // the largest value of a block that has both ends of its range nearly.
    float largest = 0;
    for (int64_t i = 0; i < block; ++i) {
      largest = std::max(largest, std::abs(expected[begin + i]));
    }
    const float tolerance = block == 1 ? 0.0f : largest * 0x1p-21f;
    for (size_t i = begin; i < begin + block; ++i) {
      if (std::isinf(expected[i])) {
        EXPECT_EQ(actual[i], expected[i]) << i;
      } else {
        EXPECT_NEAR(actual[i], expected[i], tolerance) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, DequantizeGoldenTest,
    ::testing::Values(TensorType::kF16, TensorType::kBF16, TensorType::kQ8_0,
                      TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ4_K,
                      TensorType::kQ5_K, TensorType::kQ6_K),
    [](const auto& info) { return std::string(Name(info.param)); });

TEST(DequantizeTest, HalfNansStayNansAndZerosKeepTheirSign) {
  const std::string halves("\x00\x7e\x01\xfc\x00\x00\x00\x80", 8);
  std::vector<float> values(4);
  OVERTURE_ASSERT_OK(
      Dequantize(TensorType::kF16, halves, absl::MakeSpan(values)));
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_EQ(values[2], 0.0f);
  EXPECT_FALSE(std::signbit(values[2]));
  EXPECT_TRUE(std::signbit(values[3]));
}

TEST(DequantizeTest, Bf16IsCopiedAndTheRestRounded) {
  // A NaN's bits and a value that rounding would not move.
  const std::string bf16("\x81\x7f\x01\x3f", 4);
  std::vector<BFloat16> values(2);
  OVERTURE_ASSERT_OK(
      Dequantize(TensorType::kBF16, bf16, absl::MakeSpan(values)));
  EXPECT_EQ(values[0].bits, 0x7f81);
  EXPECT_EQ(values[1].bits, 0x3f01);
  const float f32[] = {1.0f + 0x1p-8f, -3.0f};  // a tie, to even
  OVERTURE_ASSERT_OK(Dequantize(
      TensorType::kF32, {reinterpret_cast<const char*>(f32), sizeof(f32)},
      absl::MakeSpan(values)));
  EXPECT_EQ(values[0].bits, BFloat16(1.0f).bits);
  EXPECT_EQ(values[1].bits, BFloat16(-3.0f).bits);
  EXPECT_THAT(
      Dequantize(TensorType::kBF16, bf16.substr(1), absl::MakeSpan(values)),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(DequantizeTest, PartialBlocksAndWrongSizesAreRefused) {
  for (const TensorType type : kAllTypes) {
    const BlockShape block = BlockShapeOf(type);
    std::vector<float> values(2 * block.num_elements);
    const std::string bytes(2 * block.num_bytes, '\0');
    EXPECT_THAT(Dequantize(type, bytes, absl::MakeSpan(values)), IsOk());
    EXPECT_THAT(Dequantize(type, bytes.substr(1), absl::MakeSpan(values)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(std::string(Name(type)))));
    EXPECT_THAT(Dequantize(type, bytes, absl::MakeSpan(values).subspan(1)),
                StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(Dequantize(type, "", absl::Span<float>()), IsOk());
  }
}

TEST(DequantizeTest, UnknownTypesAreRefusedByNumber) {
  std::vector<float> values(32);
  EXPECT_THAT(
      Dequantize(static_cast<TensorType>(6), std::string(22, '\0'),
                 absl::MakeSpan(values)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("type 6")));
  EXPECT_FALSE(IsSupportedTensorType(6));
  EXPECT_FALSE(IsSupportedTensorType(std::numeric_limits<uint32_t>::max()));
}

}  // namespace
}  // namespace overture::engine
