#include "engine/create_backend.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::LoadedTinyModel;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

TEST(CreateBackendTest, ReadsTheThreeChoices) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(DeviceChoice choice, ParseDeviceChoice("auto"));
  EXPECT_EQ(choice, DeviceChoice::kAuto);
  OVERTURE_ASSERT_OK_AND_ASSIGN(choice, ParseDeviceChoice("cpu"));
  EXPECT_EQ(choice, DeviceChoice::kCpu);
  OVERTURE_ASSERT_OK_AND_ASSIGN(choice, ParseDeviceChoice("cuda"));
  EXPECT_EQ(choice, DeviceChoice::kCuda);
  EXPECT_THAT(ParseDeviceChoice("tpu"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("device is tpu, must be auto, cpu or cuda")));
}

TEST(CreateBackendTest, CpuIsTheCpu) {
  const LoadedTinyModel model({});
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Backend> backend,
      CreateBackend(model.files(), DeviceChoice::kCpu, ComputeDType::kF32));
  EXPECT_EQ(backend->device_name(), "cpu");
}

TEST(CreateBackendTest, LinearsReachTheBackEnd) {
  const LoadedTinyModel model({});
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Backend> backend,
      CreateBackend(model.files(), DeviceChoice::kCpu, ComputeDType::kF32,
                    LinearPrecision::kFp8));
  EXPECT_EQ(backend->numerics(), "weights=e4m3 compute=f32 kv=f32");
}

TEST(CreateBackendTest, Fp8AttentionReachesTheBackEnd) {
  const LoadedTinyModel model({.head_dim = 64});
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Backend> backend,
      CreateBackend(model.files(), DeviceChoice::kCpu, ComputeDType::kBF16,
                    LinearPrecision::kFp8, AttentionPrecision::kFp8));
  EXPECT_EQ(backend->numerics(),
            "weights=e4m3 compute=bf16 kv=bf16 attention=e4m3");
}

// The tiny model's head dim of 16 is one that no GPU kernel takes, so these
// hold on every machine.
TEST(CreateBackendTest, AutoFallsBackToTheCpu) {
  const LoadedTinyModel model({});
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Backend> backend,
      CreateBackend(model.files(), DeviceChoice::kAuto, ComputeDType::kBF16));
  EXPECT_EQ(backend->device_name(), "cpu");
}

TEST(CreateBackendTest, CudaIsRefusedWhereItCannotRun) {
  const LoadedTinyModel model({});
  const absl::Status status =
      CreateBackend(model.files(), DeviceChoice::kCuda, ComputeDType::kAuto)
          .status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status) ||
              absl::IsUnimplemented(status))
      << status;
}

TEST(CreateBackendTest, CudaHasNoF32) {
  const LoadedTinyModel model({});
  EXPECT_THAT(
      CreateBackend(model.files(), DeviceChoice::kCuda, ComputeDType::kF32),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("dtype is f32, but device cuda")));
}

}  // namespace
}  // namespace overture::engine
