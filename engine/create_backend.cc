#include "engine/create_backend.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#ifdef OVERTURE_HAVE_CUDA
#include "base/cuda/device.h"
#include "engine/cuda_backend.h"
#endif

namespace overture::engine {
namespace {

#ifdef OVERTURE_HAVE_CUDA
absl::StatusOr<std::unique_ptr<Backend>> CreateOnGpu(
    const ModelFiles& files, LinearPrecision linears,
    AttentionPrecision attention) {
  return CreateCudaBackend(files, 0, linears, attention);
}
bool HaveGpu() {
  const absl::StatusOr<int32_t> count = CountDevices();
  return count.ok() && *count > 0;
}
#else
absl::StatusOr<std::unique_ptr<Backend>> CreateOnGpu(const ModelFiles&,
                                                     LinearPrecision,
                                                     AttentionPrecision) {
  return absl::FailedPreconditionError(
      "device is cuda, but this build has no CUDA parts");
}
bool HaveGpu() { return false; }
#endif

// This machine or this build cannot run the model on its GPU, another device
// can.
bool IsDevicesFault(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsFailedPrecondition(status) ||
         absl::IsResourceExhausted(status);
}

}  // namespace

absl::StatusOr<DeviceChoice> ParseDeviceChoice(absl::string_view text) {
  if (text == "auto") return DeviceChoice::kAuto;
  if (text == "cpu") return DeviceChoice::kCpu;
  if (text == "cuda") return DeviceChoice::kCuda;
  return absl::InvalidArgumentError(
      absl::StrCat("device is ", text, ", must be auto, cpu or cuda"));
}

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(
    const ModelFiles& files, DeviceChoice device, ComputeDType dtype,
    LinearPrecision linears, AttentionPrecision attention) {
  if (device == DeviceChoice::kCuda) {
    if (dtype == ComputeDType::kF32) {
      return absl::InvalidArgumentError(
          "dtype is f32, but device cuda computes in bf16");
    }
    return CreateOnGpu(files, linears, attention);
  }
  if (device == DeviceChoice::kAuto && dtype != ComputeDType::kF32 &&
      HaveGpu()) {
    absl::StatusOr<std::unique_ptr<Backend>> backend =
        CreateOnGpu(files, linears, attention);
    if (backend.ok() || !IsDevicesFault(backend.status())) return backend;
    Log(Severity::kWarning,
        absl::StrCat("the GPU is not used: ", backend.status().message()));
  }
  return CreateCpuBackend(files, dtype, linears, attention);
}

}  // namespace overture::engine
