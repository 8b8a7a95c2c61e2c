#include "kernels/fp8_attention/quantized_kv.h"

#include <cmath>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

class TileLayoutTest : public ::testing::TestWithParam<int32_t> {};

TEST_P(TileLayoutTest, EveryElementHasItsOwnByte) {
  const int32_t dim = GetParam();
  std::set<int32_t> k, v, q;
  for (int32_t row = 0; row < fp8::kTileRows; ++row) {
    for (int32_t d = 0; d < dim; ++d) {
      q.insert(fp8::QueryOffset(row, d, dim));
      if (row >= fp8::kTileKeys) continue;
      k.insert(fp8::KeyOffset(row, d, dim));
      v.insert(fp8::ValueOffset(row, d));
    }
  }
  const size_t keys = fp8::kTileKeys * dim;
  EXPECT_EQ(k.size(), keys);
  EXPECT_EQ(v.size(), keys);
  EXPECT_EQ(q.size(), 2 * keys);
  EXPECT_LT(*k.rbegin(), fp8::KeyTileBytes(dim));
  EXPECT_LT(*v.rbegin(), fp8::ValueTileBytes(dim));
  EXPECT_LT(*q.rbegin(), fp8::QueryTileBytes(dim));
}

INSTANTIATE_TEST_SUITE_P(HeadDims, TileLayoutTest,
                         ::testing::Values(32, 64, 96, 128));

TEST(TileLayoutTest, AThreadsScoresAreItsPartOfTheNextOperand) {
  // Accumulator: lane t of four holds columns 8 b + 2 t + i of block b. Operand
  // A: it holds columns 16 h + 4 t + 0..3 of 32. Unswizzled row 0 of a V tile.
  for (int32_t group = 0; group < 2; ++group) {
    for (int32_t t = 0; t < 4; ++t) {
      for (int32_t block = 0; block < 4; ++block) {
        for (int32_t i = 0; i < 2; ++i) {
          const int32_t key = group * 32 + block * 8 + 2 * t + i;
          const int32_t half = block / 2;
          EXPECT_EQ(fp8::ValueOffset(key, 0),
                    group * 32 + half * 16 + 4 * t + block % 2 * 2 + i);
        }
      }
    }
  }
}

TEST(TileLayoutTest, TheExponentIsTheLeastThatFits) {
  const auto exponent = [](float largest, const fp8::CodeRange& range) {
    return fp8::ScaleExponent(std::bit_cast<uint32_t>(largest), range);
  };
  constexpr fp8::CodeRange kAll = {0, -48};
  EXPECT_EQ(exponent(448.0f, kAll), 0);
  EXPECT_EQ(exponent(std::nextafter(448.0f, 500.0f), kAll), 1);
  EXPECT_EQ(exponent(896.0f, kAll), 1);
  EXPECT_EQ(exponent(224.0f, kAll), -1);
  EXPECT_EQ(exponent(1.0f, kAll), -8);
  EXPECT_EQ(exponent(0x1p127f, kAll), 119);
  EXPECT_EQ(exponent(0.0f, kAll), -48);
  EXPECT_EQ(exponent(0x1p-120f, kAll), -48);
  EXPECT_EQ(exponent(14.0f, fp8::kScoreCodes), 0);
  EXPECT_EQ(exponent(15.0f, fp8::kScoreCodes), 1);
  EXPECT_EQ(exponent(448.0f, fp8::kValueCodes), 0);
  EXPECT_EQ(exponent(0.0f, fp8::kValueCodes), -10);
}

TEST(QuantizedKvTest, PartsFollowOneAnother) {
  alignas(256) static uint8_t buffer[1];
  const Fp8Kv kv = Fp8KvIn(buffer, 3, 128, 1000);
  EXPECT_EQ(kv.num_tiles, 16);
  const int64_t codes = 3 * 16 * 64 * 128;
  EXPECT_EQ(kv.k, buffer);
  EXPECT_EQ(kv.v - kv.k, codes);
  EXPECT_EQ(reinterpret_cast<uint8_t*>(kv.scales) - kv.v, codes);
  EXPECT_EQ(reinterpret_cast<uint8_t*>(kv.mean) -
                reinterpret_cast<uint8_t*>(kv.scales),
            3 * 16 * 16);
  EXPECT_EQ(Fp8KvBytes(3, 128, 1000), 2 * codes + 768 + 3 * 128 * 4);
}

TEST(QuantizedKvTest, WhatDoesNotFitIsNamed) {
  QuantizeKvParams params = {.num_kv_heads = 1,
                             .head_dim = 128,
                             .begin = 64,
                             .kv_len = 64,
                             .out = {.num_tiles = 1}};
  EXPECT_THAT(Validate(params), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("keys [64, 64)")));
  params.begin = 0;
  OVERTURE_EXPECT_OK(Validate(params));
  params.kv_len = 65;
  EXPECT_THAT(Validate(params), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("within [0, 64)")));
  params.kv_len = 64;
  params.stride_kv_row = 4;
  EXPECT_THAT(Validate(params),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 4")));
  params.stride_kv_row = 0;
  params.head_dim = 80;
  EXPECT_THAT(Validate(params), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("head_dim 80")));
}

}  // namespace
}  // namespace overture::kernels
