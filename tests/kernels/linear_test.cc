#include "kernels/linear/linear.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/fp8/quantize_rows_cpu.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/linear/linear_fp8_cpu.h"
#include "tests/support/device_copy.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::overture::testing::ToDevice;
using ::overture::testing::ToHost;
using ::testing::HasSubstr;

std::vector<float> Random(int64_t count, float size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<BFloat16> Rounded(const std::vector<float>& values) {
  std::vector<BFloat16> rounded;
  for (const float value : values) rounded.emplace_back(value);
  return rounded;
}

class LinearTest : public ::testing::TestWithParam<LinearPrecision> {
 protected:
  void SetUp() override {
    auto stream = Stream::Create();
    OVERTURE_ASSERT_OK(stream.status());
    stream_.emplace(*std::move(stream));
    OVERTURE_ASSERT_OK_AND_ASSIGN(context_, LinearContext::Create());
  }

  bool fp8() const { return GetParam() == LinearPrecision::kFp8; }

  // Both sides multiply the same values exactly and sum them in fp32 in some
  // order: each is within k * 2^-24 of the sum of magnitudes, here at most
  // sqrt(k) * 4 standard deviations. In FP8 the GPU adds 32 products at a time,
  // with 14 bits of the largest number there, at most 4: k / 32 * 2^-13 * 4
  // over all terms, or over 128 at a time. A bf16 result is rounded once more.
  void ExpectEqualsCpu(int64_t rows, int64_t out, int64_t in, bool with_bias,
                       DType y_dtype, bool accumulate) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << out << " x " << in);
    const std::vector<float> weight =
        Random(out * in, 1 / std::sqrt(static_cast<float>(in)), 1);
    const std::vector<float> bias =
        with_bias ? Random(out, 1, 2) : std::vector<float>();
    const std::vector<BFloat16> x = Rounded(Random(rows * in, 1, 3));
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<LinearCpu> cpu,
        (fp8() ? CreateLinearFp8Cpu : LinearCpu::Create)(DType::kBF16, out, in,
                                                         weight, bias));
    std::vector<float> want(rows * out);
    OVERTURE_ASSERT_OK(cpu->Apply(x.data(), rows, want.data(), DType::kF32));

    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<Linear> gpu,
        Linear::Create(context_.get(), GetParam(), out, in,
                       ToDevice(Rounded(weight), *stream_), bias, *stream_));
    std::vector<E4M3> codes(x.size());
    std::vector<float> scales(rows);
    QuantizeRowsCpu(x.data(), rows, in, codes.data(), scales.data());
    const auto device_x = ToDevice(x, *stream_);
    const auto device_codes = ToDevice(codes, *stream_);
    const auto device_scales = ToDevice(scales, *stream_);
    const LinearInput input =
        fp8() ? LinearInput{device_codes.data(), device_scales.data()}
              : LinearInput{device_x.data()};
    const double k = static_cast<double>(in);
    const double sum_error = 2 * k * 0x1p-24 * 4 * std::sqrt(k) +
                             (fp8() ? k / 32 * 0x1p-13 * 4 : 0.0);
    // Twice: the algorithm kept for the shape must work as the first choice.
    for (int run = 0; run < 2; ++run) {
      if (y_dtype == DType::kF32) {
        const std::vector<float> before(rows * out, accumulate ? 0.5f : NAN);
        auto y = ToDevice(before, *stream_);
        OVERTURE_ASSERT_OK(
            gpu->Apply(input, rows, y.data(), y_dtype, accumulate, *stream_));
        const std::vector<float> got = ToHost(y, *stream_);
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], want[i] + (accumulate ? 0.5f : 0.0f), sum_error)
              << i;
        }
      } else {
        auto y = ToDevice(std::vector<BFloat16>(rows * out, BFloat16(NAN)),
                          *stream_);
        OVERTURE_ASSERT_OK(
            gpu->Apply(input, rows, y.data(), y_dtype, accumulate, *stream_));
        const std::vector<BFloat16> got = ToHost(y, *stream_);
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(static_cast<float>(got[i]), want[i],
                      sum_error + 0x1p-8 * std::abs(want[i]))
              << i;
        }
      }
    }
  }

  std::optional<Stream> stream_;
  std::unique_ptr<LinearContext> context_;
};

TEST_P(LinearTest, EqualsTheCpus) {
  ExpectEqualsCpu(1, 320, 64, false, DType::kF32, false);
  ExpectEqualsCpu(257, 960, 576, false, DType::kF32, false);
  ExpectEqualsCpu(131, 3072, 576, false, DType::kBF16, false);
  ExpectEqualsCpu(17, 8, 16, false, DType::kBF16, false);
  // As many additions as a model has.
  ExpectEqualsCpu(3, 64, 14336, false, DType::kF32, false);
}

TEST_P(LinearTest, AddsTheBias) {
  ExpectEqualsCpu(65, 192, 128, true, DType::kF32, false);
}

TEST_P(LinearTest, AddsToWhatIsThere) {
  ExpectEqualsCpu(129, 576, 1536, false, DType::kF32, true);
}

TEST_P(LinearTest, NamesTheSizeThatDoesNotFit) {
  const std::vector<BFloat16> weight(20 * 16);
  const auto create = [&](int64_t out, int64_t in) {
    return Linear::Create(context_.get(), GetParam(), out, in,
                          ToDevice(weight, *stream_), {}, *stream_)
        .status();
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(create(20, 16), StatusIs(invalid, HasSubstr("features is 20")));
  EXPECT_THAT(
      create(16, 16),
      StatusIs(invalid, HasSubstr("weight.size() is 320, must be 256")));
  EXPECT_THAT(create(16, fp8() ? 24 : 20),
              StatusIs(invalid, HasSubstr(fp8() ? "is 24, must be a positive "
                                                  "multiple of 16"
                                                : "is 20, must be a positive "
                                                  "multiple of 8")));
}

TEST_P(LinearTest, RefusesToAddInBf16AndTheOtherKindOfInput) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Linear> linear,
      Linear::Create(context_.get(), GetParam(), 16, 16,
                     ToDevice(std::vector<BFloat16>(256), *stream_), {},
                     *stream_));
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(linear->Apply({}, 1, nullptr, DType::kBF16, true, *stream_),
              StatusIs(invalid, HasSubstr("kF32 with")));
  EXPECT_THAT(linear->Apply({}, 0, nullptr, DType::kBF16, false, *stream_),
              StatusIs(invalid, HasSubstr("rows is 0")));
  const float scale = 1;
  EXPECT_THAT(linear->Apply({.scales = fp8() ? nullptr : &scale}, 1, nullptr,
                            DType::kF32, false, *stream_),
              StatusIs(invalid, HasSubstr("x must have scales exactly if")));
}

INSTANTIATE_TEST_SUITE_P(Precisions, LinearTest,
                         ::testing::Values(LinearPrecision::kBF16,
                                           LinearPrecision::kFp8),
                         [](const auto& info) {
                           return info.param == LinearPrecision::kFp8 ? "fp8"
                                                                      : "bf16";
                         });

}  // namespace
}  // namespace overture::kernels
