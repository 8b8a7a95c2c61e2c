#include "kernels/fp8/quantize_rows.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/fp8/quantize_rows_cpu.h"
#include "tests/support/device_copy.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::overture::testing::ToDevice;
using ::overture::testing::ToHost;
using ::testing::HasSubstr;

class QuantizeRowsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto stream = Stream::Create();
    OVERTURE_ASSERT_OK(stream.status());
    stream_.emplace(*std::move(stream));
  }

  // Codes that are NaN may differ in their sign.
  void ExpectEqualsCpu(const std::vector<BFloat16>& x, int64_t rows) {
    const auto columns = static_cast<int64_t>(x.size()) / rows;
    std::vector<E4M3> want(x.size());
    std::vector<float> want_scales(rows);
    QuantizeRowsCpu(x.data(), rows, columns, want.data(), want_scales.data());
    const auto device_x = ToDevice(x, *stream_);
    auto codes = ToDevice(std::vector<E4M3>(x.size(), E4M3(1.0f)), *stream_);
    auto scales = ToDevice(std::vector<float>(rows, -1.0f), *stream_);
    OVERTURE_ASSERT_OK(LaunchQuantizeRows({.x = device_x.data(),
                                           .codes = codes.data(),
                                           .scales = scales.data(),
                                           .rows = rows,
                                           .columns = columns},
                                          stream_->get()));
    const std::vector<E4M3> got = ToHost(codes, *stream_);
    const std::vector<float> got_scales = ToHost(scales, *stream_);
    for (int64_t r = 0; r < rows; ++r) {
      ASSERT_TRUE(got_scales[r] == want_scales[r] ||
                  (std::isnan(got_scales[r]) && std::isnan(want_scales[r])))
          << r << ": " << got_scales[r] << ", " << want_scales[r];
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const uint8_t mask = (want[i].bits & 0x7f) == 0x7f ? 0x7f : 0xff;
      ASSERT_EQ(got[i].bits & mask, want[i].bits & mask) << i;
    }
  }

  std::optional<Stream> stream_;
};

TEST_F(QuantizeRowsTest, GivesTheCpusBits) {
  for (const int64_t columns : {8, 16, 576, 2048, 2056, 14336, 65536}) {
    SCOPED_TRACE(columns);
    constexpr int64_t kRows = 40;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<BFloat16> x;
    for (int64_t i = 0; i < kRows * columns; ++i) {
      x.emplace_back(std::ldexp(normal(random), int(i / columns) - 20));
    }
    ExpectEqualsCpu(x, kRows);
  }
}

TEST_F(QuantizeRowsTest, GivesTheCpusBitsForEveryBf16) {
  // Each beside a row maximum of 448, so that codes are roundings of the value.
  std::vector<BFloat16> x;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    BFloat16 value;
    value.bits = static_cast<uint16_t>(bits);
    x.insert(x.end(), 7, value);
    x.emplace_back(448.0f);
  }
  ExpectEqualsCpu(x, 0x10000);
}

TEST_F(QuantizeRowsTest, GivesTheCpusBitsForRowsOfZerosAndOfNoNumbers) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<BFloat16> x(6 * 32, BFloat16(0.0f));
  for (int i = 0; i < 32; ++i) x[32 + i] = BFloat16(i % 2 ? -0.0f : 0.0f);
  x[64 + 5] = BFloat16(NAN);
  x[96 + 31] = BFloat16(kInfinity);
  x[128] = BFloat16(-kInfinity);
  x[129] = BFloat16(3.0f);
  x[160] = BFloat16(1e-35f);
  ExpectEqualsCpu(x, 6);
}

TEST_F(QuantizeRowsTest, NamesTheSizeThatDoesNotFit) {
  EXPECT_THAT(
      LaunchQuantizeRows({.rows = 0, .columns = 16}, stream_->get()),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rows is 0")));
  EXPECT_THAT(
      LaunchQuantizeRows({.rows = 1, .columns = 65544}, stream_->get()),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("columns is 65544, must be a multiple of 8 in 1 .. "
                         "65536")));
}

}  // namespace
}  // namespace overture::kernels
