// Owner of a CUDA event: a mark in a stream that other streams and the host can
// wait for, and, with timing, measure from. Movable, not copyable;
// thread-compatible.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace overture {

class Stream;

class Event {
 public:
  enum class Timing { kOff, kOn };

  // kOff is cheaper to record and to wait for.
  static absl::StatusOr<Event> Create(Timing timing = Timing::kOff);

  Event(Event&& other) noexcept
      : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();

  cudaEvent_t get() const { return event_; }

  // Marks the end of the work given to `stream` so far.
  absl::Status Record(const Stream& stream) const;

  // Waits until the last record is reached; at once if there was none.
  absl::Status Synchronize() const;

  // Whether the last record is reached; true if there was none.
  absl::StatusOr<bool> IsReached() const;

 private:
  explicit Event(cudaEvent_t event) : event_(event) {}

  cudaEvent_t event_;
};

// Milliseconds from one to the other, about 0.5 us of resolution. Both were
// created with timing, recorded and reached; INTERNAL otherwise.
absl::StatusOr<float> ElapsedMillis(const Event& begin, const Event& end);

}  // namespace overture
