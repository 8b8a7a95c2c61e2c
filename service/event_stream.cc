#include "service/event_stream.h"

#include <utility>

namespace overture::service {

void EventStream::Write(v1::PrefillEvent event) {
  mutex_.Lock();
  if (!pending_.empty() && event.has_progress() &&
      pending_.back().has_progress()) {
    pending_.back() = std::move(event);
  } else {
    pending_.push_back(std::move(event));
  }
  Advance();
}

void EventStream::Close(grpc::Status status) {
  mutex_.Lock();
  if (!status.ok()) pending_.clear();
  final_ = std::move(status);
  Advance();
}

void EventStream::OnWriteDone(bool ok) {
  // Outside the lock: whoever waits on the token runs its callbacks here.
  if (!ok) stop_.request_stop();
  mutex_.Lock();
  writing_ = false;
  if (!ok) broken_ = true;
  Advance();
}

void EventStream::OnCancel() { stop_.request_stop(); }

void EventStream::OnDone() {
  bool delivered = false;
  {
    absl::MutexLock lock(&mutex_);
    delivered = !broken_ && final_.has_value() && final_->ok();
  }
  on_done_(delivered);
  delete this;
}

void EventStream::Advance() {
  if (broken_) pending_.clear();
  if (writing_) {
    mutex_.Unlock();
    return;
  }
  if (!pending_.empty()) {
    in_flight_ = std::move(pending_.front());
    pending_.pop_front();
    writing_ = true;
    mutex_.Unlock();
    StartWrite(&in_flight_);
    return;
  }
  if (!final_.has_value()) {
    mutex_.Unlock();
    return;
  }
  const grpc::Status status = *final_;
  mutex_.Unlock();
  Finish(status);
}

}  // namespace overture::service
