// The queue in front of the back end: one prefill runs, the others wait by
// priority, then arrival.
//
// Thread-safe; outlives its tickets.
//
//   OVERTURE_ASSIGN_OR_RETURN(Scheduler::Ticket ticket, scheduler.Enter(5));
//   OVERTURE_RETURN_IF_ERROR(ticket.Wait(stop));
//   ...                  // alone until ticket.Leave() or its destruction
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <stop_token>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace overture::engine {

class Scheduler {
 public:
  // `max_queued` >= 0 callers may wait, besides the one that runs.
  explicit Scheduler(int32_t max_queued) : max_queued_(max_queued) {}

  // A place in the queue. Movable, one thread at a time.
  class Ticket {
   public:
    Ticket(Ticket&& other) noexcept;
    Ticket& operator=(Ticket&& other) = delete;
    ~Ticket() { Leave(); }

    // Callers that run or would run before this one, when it entered.
    int32_t ahead() const { return ahead_; }

    // Blocks until this caller's turn, once. CANCELLED when `stop` is
    // requested first; the place in the queue is then given up.
    absl::Status Wait(const std::stop_token& stop);

    // Lets the next one run. Idempotent.
    void Leave();

   private:
    friend class Scheduler;
    Ticket(Scheduler* scheduler, int64_t priority, int64_t arrival,
           int32_t ahead)
        : scheduler_(scheduler),
          priority_(priority),
          arrival_(arrival),
          ahead_(ahead) {}

    Scheduler* scheduler_;  // null once left
    int64_t priority_;
    int64_t arrival_;
    int32_t ahead_;
    bool running_ = false;
  };

  // RESOURCE_EXHAUSTED, naming the limit, when the queue is full. Larger
  // `priority` runs first.
  absl::StatusOr<Ticket> Enter(int32_t priority);

  int32_t num_queued() const;
  int32_t num_running() const;

 private:
  // Ascending order is the order of running.
  struct Place {
    int64_t minus_priority;
    int64_t arrival;
    friend auto operator<=>(const Place&, const Place&) = default;
  };

  const int32_t max_queued_;
  mutable std::mutex mutex_;
  // Waited on with a stop token, which std::condition_variable cannot do.
  std::condition_variable_any changed_;
  std::set<Place> waiting_;  // guarded by mutex_, as all below
  bool running_ = false;
  int64_t next_arrival_ = 0;
};

}  // namespace overture::engine
