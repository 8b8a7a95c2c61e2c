// The writing half of a Prefill stream: events go in from any thread, one write
// is in flight at a time, progress is coalesced while the reader is slow, so
// that at most five events wait. Never blocks.
//
// Deletes itself in OnDone, which gRPC calls after Finish; so whoever produces
// events ends with exactly one Close() and does not touch the stream after it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <optional>
#include <stop_token>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "overture/v1/prefill.pb.h"

namespace overture::service {

class EventStream final : public grpc::ServerWriteReactor<v1::PrefillEvent> {
 public:
  // `on_done` runs once, last, on one of gRPC's threads; `delivered` tells
  // whether every event was written.
  explicit EventStream(std::function<void(bool delivered)> on_done)
      : on_done_(std::move(on_done)) {}

  // Stops when the caller cancels, its deadline passes or its connection ends.
  std::stop_token stop_token() const { return stop_.get_token(); }

  void Write(v1::PrefillEvent event) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the stream with `status` once what was written before is out; at once
  // if it is not OK.
  void Close(grpc::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // Starts the next write, or finishes, if it is time to. Takes the lock over
  // and gives it back first: after Finish the stream may be gone.
  void Advance() ABSL_UNLOCK_FUNCTION(mutex_);

  const std::function<void(bool)> on_done_;
  std::stop_source stop_;
  absl::Mutex mutex_;
  std::deque<v1::PrefillEvent> pending_ ABSL_GUARDED_BY(mutex_);
  v1::PrefillEvent in_flight_;  // owned by gRPC while writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> final_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace overture::service
