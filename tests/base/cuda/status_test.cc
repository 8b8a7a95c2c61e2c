#include "base/cuda/status.h"

#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

// None of these needs a device: the runtime's error texts are its own.

TEST(CudaStatusTest, SuccessIsOk) {
  EXPECT_THAT(CudaStatus(cudaSuccess, "call"), IsOk());
}

TEST(CudaStatusTest, MessageNamesTheCallAndTheError) {
  EXPECT_THAT(CudaStatus(cudaErrorInvalidValue, "cudaFoo(7)"),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("cudaFoo(7): cudaErrorInvalidValue")));
}

TEST(CudaStatusTest, OutOfMemoryIsResourceExhausted) {
  EXPECT_THAT(CudaStatus(cudaErrorMemoryAllocation, "call"),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(CudaStatusTest, AMissingDeviceIsAPrecondition) {
  EXPECT_THAT(CudaStatus(cudaErrorNoDevice, "call"),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(CudaStatus(cudaErrorInsufficientDriver, "call"),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(CudaStatusTest, AStickyErrorSaysThatTheProcessIsDone) {
  EXPECT_TRUE(IsStickyCudaError(cudaErrorIllegalAddress));
  EXPECT_TRUE(IsStickyCudaError(cudaErrorLaunchFailure));
  EXPECT_FALSE(IsStickyCudaError(cudaErrorMemoryAllocation));
  EXPECT_FALSE(IsStickyCudaError(cudaErrorInvalidValue));
  EXPECT_THAT(CudaStatus(cudaErrorIllegalAddress, "call"),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("restart it")));
}

TEST(CudaStatusTest, MacroReturnsTheErrorWithTheCallsText) {
  const auto fail = []() -> absl::Status {
    OVERTURE_RETURN_IF_CUDA_ERROR(cudaErrorNotSupported);
    return absl::OkStatus();
  };
  EXPECT_THAT(
      fail(),
      StatusIs(absl::StatusCode::kInternal,
               HasSubstr("cudaErrorNotSupported: cudaErrorNotSupported")));
}

}  // namespace
}  // namespace overture
