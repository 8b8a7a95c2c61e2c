#include "kernels/fp8/e4m3.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace overture::kernels {
namespace {

// By the definition of the format.
double Decode(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double magnitude = exponent == 0
                               ? std::ldexp(mantissa, -9)
                               : std::ldexp(8 + mantissa, exponent - 7 - 3);
  return code & 0x80 ? -magnitude : magnitude;
}

// Of the codes of the value's sign the nearest, of two the even one.
int Encode(float value) {
  const int sign = std::signbit(value) ? 0x80 : 0;
  int best = 0;
  for (int code = 1; code <= 0x7e; ++code) {
    const double distance = std::abs(std::abs(double{value}) - Decode(code));
    const double least = std::abs(std::abs(double{value}) - Decode(best));
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return sign | best;
}

TEST(E4M3Test, EveryCodeDecodesByTheDefinitionAndComesBack) {
  for (int code = 0; code < 256; ++code) {
    E4M3 e;
    e.bits = static_cast<uint8_t>(code);
    const float value = static_cast<float>(e);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(double{value}, Decode(code)) << code;
    }
    EXPECT_EQ(E4M3(value).bits, code);
  }
}

TEST(E4M3Test, RoundsToTheNearestEvenAroundEveryCode) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto low = static_cast<float>(Decode(code));
    const auto high = static_cast<float>(Decode(code + 1));
    const float middle = (low + high) / 2;  // exact
    for (const float value :
         {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f),
          std::nextafter(low, 1e9f), std::nextafter(high, 0.0f)}) {
      EXPECT_EQ(E4M3(value).bits, Encode(value)) << value;
      EXPECT_EQ(E4M3(-value).bits, Encode(-value)) << -value;
    }
  }
}

TEST(E4M3Test, EqualsTheSearchOnRandomValues) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-12, 10);
  for (int i = 0; i < 20000; ++i) {
    const float value = std::exp2(exponent(random)) * (i % 2 ? 1.0f : -1.0f);
    ASSERT_EQ(E4M3(value).bits, Encode(value)) << value;
  }
}

TEST(E4M3Test, SaturatesAndKeepsNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float value : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(E4M3(value).bits, 0x7e) << value;
    EXPECT_EQ(E4M3(-value).bits, 0xfe) << -value;
  }
  EXPECT_EQ(E4M3(NAN).bits & 0x7f, 0x7f);
  EXPECT_EQ(E4M3(1e-40f).bits, 0x00);
  EXPECT_EQ(E4M3(-0.0f).bits, 0x80);
}

}  // namespace
}  // namespace overture::kernels
