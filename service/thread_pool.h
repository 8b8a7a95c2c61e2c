// Threads for work that blocks (a prefill, a disk read), so that gRPC's own
// threads never do. Threads start when needed and stay; the one that went idle
// last works first, so that few threads hold warm caches and OpenMP teams.
// Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace overture::service {

class ThreadPool {
 public:
  using Task = absl::AnyInvocable<void()>;

  // `on_thread_start` runs first on every thread; may be null.
  // REQUIRES max_threads >= 1.
  explicit ThreadPool(int32_t max_threads,
                      std::function<void()> on_thread_start = nullptr);
  // Runs what is queued, then joins. Nobody may call Run any more.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Never blocks. Tasks that find no thread wait in arrival order.
  void Run(Task task);

  int32_t num_threads() const;

 private:
  struct Worker {
    Task task;  // handed over while idle
    absl::CondVar wake;
  };
  void Loop(Worker* worker);

  const int32_t max_threads_;
  const std::function<void()> on_thread_start_;
  mutable absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<Worker*> idle_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Worker>> workers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace overture::service
