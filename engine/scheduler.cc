#include "engine/scheduler.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace overture::engine {

Scheduler::Ticket::Ticket(Ticket&& other) noexcept
    : scheduler_(std::exchange(other.scheduler_, nullptr)),
      priority_(other.priority_),
      arrival_(other.arrival_),
      ahead_(other.ahead_),
      running_(other.running_) {}

absl::StatusOr<Scheduler::Ticket> Scheduler::Enter(int32_t priority) {
  const std::lock_guard lock(mutex_);
  // Whoever finds nothing running will not wait.
  const int64_t waiting = static_cast<int64_t>(waiting_.size());
  if (waiting >= int64_t{max_queued_} + (running_ ? 0 : 1)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "queue is full: ", waiting, " requests wait, limit ", max_queued_));
  }
  const Place place{-int64_t{priority}, next_arrival_++};
  const auto it = waiting_.insert(place).first;
  const auto ahead =
      std::distance(waiting_.begin(), it) + static_cast<int>(running_);
  return Ticket(this, priority, place.arrival, static_cast<int32_t>(ahead));
}

absl::Status Scheduler::Ticket::Wait(const std::stop_token& stop) {
  {
    std::unique_lock lock(scheduler_->mutex_);
    const Place place{-priority_, arrival_};
    const auto my_turn = [&] {
      return !scheduler_->running_ && *scheduler_->waiting_.begin() == place;
    };
    if (!stop.stop_requested() &&
        scheduler_->changed_.wait(lock, stop, my_turn)) {
      scheduler_->waiting_.erase(place);
      scheduler_->running_ = true;
      running_ = true;
      return absl::OkStatus();
    }
  }
  Leave();
  return absl::CancelledError("stopped while queued");
}

void Scheduler::Ticket::Leave() {
  Scheduler* scheduler = std::exchange(scheduler_, nullptr);
  if (scheduler == nullptr) return;
  {
    const std::lock_guard lock(scheduler->mutex_);
    if (running_) {
      scheduler->running_ = false;
    } else {
      scheduler->waiting_.erase({-priority_, arrival_});
    }
  }
  scheduler->changed_.notify_all();
}

int32_t Scheduler::num_queued() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int32_t>(waiting_.size());
}

int32_t Scheduler::num_running() const {
  const std::lock_guard lock(mutex_);
  return running_ ? 1 : 0;
}

}  // namespace overture::engine
