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
#include "kernels/linear/linear_cpu.h"
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

class LinearTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto stream = Stream::Create();
    OVERTURE_ASSERT_OK(stream.status());
    stream_.emplace(*std::move(stream));
    OVERTURE_ASSERT_OK_AND_ASSIGN(context_, LinearContext::Create());
  }

  // Both sides multiply the same bf16 values exactly and sum them in fp32 in
  // some order: each is within k * 2^-24 of the sum of magnitudes, here at most
  // sqrt(k) * 4 standard deviations. A bf16 result is rounded once more.
  void ExpectEqualsCpu(int64_t rows, int64_t out, int64_t in, bool with_bias,
                       DType y_dtype, bool accumulate) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << out << " x " << in);
    const std::vector<float> weight =
        Random(out * in, 1 / std::sqrt(static_cast<float>(in)), 1);
    const std::vector<float> bias =
        with_bias ? Random(out, 1, 2) : std::vector<float>();
    std::vector<BFloat16> x;
    for (const float value : Random(rows * in, 1, 3)) {
      x.push_back(BFloat16(value));
    }
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<LinearCpu> cpu,
        LinearCpu::Create(DType::kBF16, out, in, weight, bias));
    std::vector<float> want(rows * out);
    OVERTURE_ASSERT_OK(cpu->Apply(x.data(), rows, want.data(), DType::kF32));

    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<Linear> gpu,
        Linear::Create(context_.get(), out, in, weight, bias, *stream_));
    const auto device_x = ToDevice(x, *stream_);
    const double sum_error = 2 * static_cast<double>(in) * 0x1p-24 * 4 *
                             std::sqrt(static_cast<double>(in));
    // Twice: the algorithm kept for the shape must work as the first choice.
    for (int run = 0; run < 2; ++run) {
      if (y_dtype == DType::kF32) {
        const std::vector<float> before(rows * out, accumulate ? 0.5f : NAN);
        auto y = ToDevice(before, *stream_);
        OVERTURE_ASSERT_OK(gpu->Apply(device_x.data(), rows, y.data(), y_dtype,
                                      accumulate, *stream_));
        const std::vector<float> got = ToHost(y, *stream_);
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], want[i] + (accumulate ? 0.5f : 0.0f), sum_error)
              << i;
        }
      } else {
        auto y = ToDevice(std::vector<BFloat16>(rows * out, BFloat16(NAN)),
                          *stream_);
        OVERTURE_ASSERT_OK(gpu->Apply(device_x.data(), rows, y.data(), y_dtype,
                                      accumulate, *stream_));
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

TEST_F(LinearTest, EqualsTheCpus) {
  ExpectEqualsCpu(1, 320, 64, false, DType::kF32, false);
  ExpectEqualsCpu(257, 960, 576, false, DType::kF32, false);
  ExpectEqualsCpu(131, 3072, 576, false, DType::kBF16, false);
  ExpectEqualsCpu(17, 8, 8, false, DType::kBF16, false);
}

TEST_F(LinearTest, AddsTheBias) {
  ExpectEqualsCpu(65, 192, 128, true, DType::kF32, false);
}

TEST_F(LinearTest, AddsToWhatIsThere) {
  ExpectEqualsCpu(129, 576, 1536, false, DType::kF32, true);
}

TEST_F(LinearTest, NamesTheSizeThatDoesNotFit) {
  const std::vector<float> weight(20 * 16);
  EXPECT_THAT(Linear::Create(context_.get(), 20, 16, weight, {}, *stream_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("out_features is 20")));
  EXPECT_THAT(Linear::Create(context_.get(), 16, 16, weight, {}, *stream_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("weight.size() is 320, must be 256")));
}

TEST_F(LinearTest, RefusesToAddInBf16) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Linear> linear,
      Linear::Create(context_.get(), 16, 16, std::vector<float>(256), {},
                     *stream_));
  EXPECT_THAT(
      linear->Apply(nullptr, 1, nullptr, DType::kBF16, true, *stream_),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("kF32 with")));
  EXPECT_THAT(
      linear->Apply(nullptr, 0, nullptr, DType::kBF16, false, *stream_),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rows is 0")));
}

}  // namespace
}  // namespace overture::kernels
