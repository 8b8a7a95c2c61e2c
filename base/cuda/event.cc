#include "base/cuda/event.h"

#include "base/cuda/status.h"
#include "base/cuda/stream.h"

namespace overture {

absl::StatusOr<Event> Event::Create(Timing timing) {
  cudaEvent_t event = nullptr;
  const unsigned flags =
      timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming;
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event, flags));
  return Event(event);
}

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

absl::Status Event::Record(const Stream& stream) const {
  return CudaStatus(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
}

absl::Status Event::Synchronize() const {
  return CudaStatus(cudaEventSynchronize(event_), "cudaEventSynchronize");
}

absl::StatusOr<bool> Event::IsReached() const {
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  OVERTURE_RETURN_IF_ERROR(CudaStatus(error, "cudaEventQuery"));
  return true;
}

absl::StatusOr<float> ElapsedMillis(const Event& begin, const Event& end) {
  float millis = 0;
  OVERTURE_RETURN_IF_CUDA_ERROR(
      cudaEventElapsedTime(&millis, begin.get(), end.get()));
  return millis;
}

}  // namespace overture
