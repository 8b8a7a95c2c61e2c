#include "base/cuda/device.h"

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"

namespace overture {

absl::StatusOr<int32_t> CountDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  const absl::Status status = CudaStatus(error, "cudaGetDeviceCount");
  if (absl::IsFailedPrecondition(status)) return 0;
  OVERTURE_RETURN_IF_ERROR(status);
  return count;
}

absl::StatusOr<DeviceInfo> GetDeviceInfo(int32_t index) {
  OVERTURE_ASSIGN_OR_RETURN(const int32_t count, CountDevices());
  if (index < 0 || index >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("device ", index, " of ", count));
  }
  cudaDeviceProp properties;
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, index));
  return DeviceInfo{
      .index = index,
      .name = properties.name,
      .capability_major = properties.major,
      .capability_minor = properties.minor,
      .num_multiprocessors = properties.multiProcessorCount,
      .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
      .l2_bytes = properties.l2CacheSize,
      .shared_bytes_per_block =
          static_cast<int64_t>(properties.sharedMemPerBlockOptin),
  };
}

absl::StatusOr<DeviceMemory> GetDeviceMemory() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
  return DeviceMemory{.free_bytes = static_cast<int64_t>(free_bytes),
                      .total_bytes = static_cast<int64_t>(total_bytes)};
}

std::string ToString(const DeviceInfo& info) {
  return absl::StrFormat("%s, capability %d.%d, %d multiprocessors, %.1f GiB",
                         info.name, info.capability_major,
                         info.capability_minor, info.num_multiprocessors,
                         static_cast<double>(info.memory_bytes) / (1 << 30));
}

}  // namespace overture
