#include "service/thread_pool.h"

#include <utility>

#include "base/check.h"

namespace overture::service {

ThreadPool::ThreadPool(int32_t max_threads,
                       std::function<void()> on_thread_start)
    : max_threads_(max_threads), on_thread_start_(std::move(on_thread_start)) {
  OVERTURE_CHECK(max_threads >= 1);
}

ThreadPool::~ThreadPool() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    for (Worker* worker : idle_) worker->wake.Signal();
    idle_.clear();
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void ThreadPool::Run(Task task) {
  absl::MutexLock lock(&mutex_);
  OVERTURE_CHECK(!closing_);
  if (!idle_.empty()) {
    Worker* worker = idle_.back();
    idle_.pop_back();
    worker->task = std::move(task);
    worker->wake.Signal();
    return;
  }
  if (static_cast<int32_t>(threads_.size()) == max_threads_) {
    queue_.push_back(std::move(task));
    return;
  }
  workers_.push_back(std::make_unique<Worker>());
  Worker* worker = workers_.back().get();
  worker->task = std::move(task);
  threads_.emplace_back([this, worker] { Loop(worker); });
}

void ThreadPool::Loop(Worker* worker) {
  if (on_thread_start_ != nullptr) on_thread_start_();
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mutex_);
      if (worker->task == nullptr && !queue_.empty()) {
        worker->task = std::move(queue_.front());
        queue_.pop_front();
      }
      if (worker->task == nullptr) {
        if (closing_) return;
        idle_.push_back(worker);
        while (worker->task == nullptr && !closing_) {
          worker->wake.Wait(&mutex_);
        }
        if (worker->task == nullptr) return;
      }
      // A moved-from AnyInvocable is empty only by convention: say so.
      task = std::exchange(worker->task, nullptr);
    }
    task();
  }
}

int32_t ThreadPool::num_threads() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int32_t>(threads_.size());
}

}  // namespace overture::service
