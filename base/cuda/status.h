// CUDA runtime errors as values. Thread-safe.
//
//   OVERTURE_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream));
//
//   kernel<<<grid, block, 0, stream>>>(...);
//   return CudaLaunchStatus("sparse_attention");
//
// Codes:
//   RESOURCE_EXHAUSTED   device or pinned memory is used up
//   FAILED_PRECONDITION  no device, or a driver too old for this build
//   INTERNAL             all else; after a sticky error (see below) every later
//                        CUDA call of this process fails, so the process should
//                        turn unhealthy and be replaced
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace overture {

// `call` is what failed, as text for the message. Also clears the thread's last
// error, which the runtime would otherwise report again at the next launch.
absl::Status CudaStatus(cudaError_t error, absl::string_view call);

// Whether the launch just made was accepted; stands directly after it. What
// goes wrong while the kernel runs surfaces where the stream is synchronised.
absl::Status CudaLaunchStatus(absl::string_view kernel);

// True if the error has destroyed the context: a trap, a bad address, a lost
// device.
bool IsStickyCudaError(cudaError_t error);

}  // namespace overture

#define OVERTURE_RETURN_IF_CUDA_ERROR(call) \
  OVERTURE_RETURN_IF_ERROR(::overture::CudaStatus((call), #call))
