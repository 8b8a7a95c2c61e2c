#include "base/cuda/stream.h"

#include "base/cuda/event.h"
#include "base/cuda/status.h"

namespace overture {

absl::StatusOr<Stream> Stream::Create() {
  cudaStream_t stream = nullptr;
  OVERTURE_RETURN_IF_CUDA_ERROR(
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

Stream::~Stream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status Stream::Synchronize() const {
  return CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

absl::Status Stream::WaitFor(const Event& event) const {
  return CudaStatus(cudaStreamWaitEvent(stream_, event.get(), 0),
                    "cudaStreamWaitEvent");
}

}  // namespace overture
