#include "base/cuda/device_buffer.h"

#include <cuda_runtime_api.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/cuda/device.h"
#include "base/cuda/pinned_memory.h"
#include "base/cuda/status.h"

namespace overture::cuda_internal {

absl::StatusOr<void*> Allocate(MemoryKind kind, int64_t count,
                               int64_t bytes_per_element) {
  if (count < 0 ||
      count > std::numeric_limits<int64_t>::max() / bytes_per_element) {
    return absl::InvalidArgumentError(absl::StrCat(
        "buffer of ", count, " elements of ", bytes_per_element, " bytes"));
  }
  if (count == 0) return nullptr;
  if (kind == MemoryKind::kPinned) {
    return AllocatePinned(count * bytes_per_element);
  }
  const size_t bytes = static_cast<size_t>(count * bytes_per_element);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaSuccess) return data;
  std::string what = absl::StrCat(bytes, " bytes of device memory");
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    const absl::StatusOr<DeviceMemory> memory = GetDeviceMemory();
    if (memory.ok()) {
      absl::StrAppend(&what, ", ", memory->free_bytes, " of ",
                      memory->total_bytes, " are free");
    }
  }
  return CudaStatus(error, what);
}

void Free(MemoryKind kind, void* data, int64_t bytes) {
  if (kind == MemoryKind::kPinned) {
    FreePinned(data, bytes);
  } else {
    // An error here is that of earlier work and surfaces where that is awaited.
    cudaFree(data);
  }
}

absl::Status Copy(void* to, int64_t to_count, const void* from,
                  int64_t from_count, int64_t bytes_per_element,
                  const Stream& stream) {
  if (to_count != from_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("copy of ", from_count, " elements into ", to_count));
  }
  if (to_count == 0) return absl::OkStatus();
  return CudaStatus(
      cudaMemcpyAsync(to, from,
                      static_cast<size_t>(to_count * bytes_per_element),
                      cudaMemcpyDefault, stream.get()),
      "cudaMemcpyAsync");
}

}  // namespace overture::cuda_internal
