// Owner of a CUDA stream. Work of one stream runs in order; the legacy default
// stream does not wait for it. Movable, not copyable; thread-compatible.
//
//   OVERTURE_ASSIGN_OR_RETURN(Stream stream, Stream::Create());
//   OVERTURE_RETURN_IF_ERROR(Launch(params, stream.get()));
//   OVERTURE_RETURN_IF_ERROR(stream.Synchronize());
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace overture {

class Event;

class Stream {
 public:
  // On the calling thread's current device.
  static absl::StatusOr<Stream> Create();

  Stream(Stream&& other) noexcept
      : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  // Does not wait: work in flight runs on, so its buffers must outlive it.
  ~Stream();

  cudaStream_t get() const { return stream_; }

  // Waits for all work so far; returns what went wrong in it.
  absl::Status Synchronize() const;

  // Work given to this stream from now on starts after `event`'s last record.
  absl::Status WaitFor(const Event& event) const;

 private:
  explicit Stream(cudaStream_t stream) : stream_(stream) {}

  cudaStream_t stream_;
};

}  // namespace overture
