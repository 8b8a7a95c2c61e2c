#include "base/dtype.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace overture {
namespace {

TEST(BFloat16Test, EveryBitPatternSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    BFloat16 value;
    value.bits = static_cast<uint16_t>(bits);
    const float f = static_cast<float>(value);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(f))));
    } else {
      EXPECT_EQ(BFloat16(f).bits, bits);
    }
  }
}

TEST(BFloat16Test, RoundsToNearestEven) {
  EXPECT_EQ(BFloat16(1.0f + 0x1p-8f).bits, BFloat16(1.0f).bits);
  EXPECT_EQ(static_cast<float>(BFloat16(1.0f + 3 * 0x1p-8f)), 1.0f + 0x1p-6f);
}

TEST(Float16Test, EveryBitPatternSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    Float16 value;
    value.bits = static_cast<uint16_t>(bits);
    const float f = static_cast<float>(value);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(Float16(f))));
    } else {
      EXPECT_EQ(Float16(f).bits, bits) << f;
    }
  }
}

TEST(Float16Test, AgreesWithTheCompilersHalfOnEdges) {
  for (float f : {65519.0f, 65520.0f, 1e9f, -1e9f, 0x1p-24f, 0x1p-25f,
                  0x1.8p-25f, 6.1e-5f, 0x1.ffcp-15f, 1.00048828125f}) {
    const _Float16 expected = static_cast<_Float16>(f);
    EXPECT_EQ(Float16(f).bits, std::bit_cast<uint16_t>(expected)) << f;
  }
}

TEST(DTypeTest, NamesRoundTripAndUnknownOnesAreNamed) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_EQ(*ParseDType(Name(dtype)), dtype);
  }
  EXPECT_EQ(ParseDType("int3").status().message(),
            "dtype \"int3\" is not one of f32, f16, bf16");
}

}  // namespace
}  // namespace overture
