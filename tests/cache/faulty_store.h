// Stores that fail or stall when a test says so, around working ones.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "cache/payload_store.h"

namespace overture::cache {

// What the stores shall do. Shared by a test and the stores that it handed to
// a cache. Thread-safe.
struct Faults {
  // Puts that still succeed; negative: no limit.
  std::atomic<int64_t> puts_left{-1};
  std::atomic<bool> fail_flush{false};
  std::atomic<bool> fail_commit{false};
  std::atomic<bool> fail_delete{false};
  std::atomic<int64_t> num_puts{0};

  // While stalled, a Put does not return.
  void Stall(bool on) {
    absl::MutexLock lock(&mu);
    stalled = on;
  }
  void AwaitFlow() {
    absl::MutexLock lock(&mu);
    mu.Await(absl::Condition(
        +[](bool* stalled_now) { return !*stalled_now; }, &stalled));
  }

  absl::Mutex mu;
  bool stalled = false;
};

class FaultyPayloadStore final : public PayloadStore {
 public:
  FaultyPayloadStore(std::unique_ptr<PayloadStore> store, Faults* faults)
      : store_(std::move(store)), faults_(*faults) {}

  absl::Status Put(absl::string_view key, absl::string_view value) override {
    faults_.AwaitFlow();
    ++faults_.num_puts;
    if (faults_.puts_left == 0) {
      return absl::ResourceExhaustedError("no space left on device");
    }
    if (faults_.puts_left > 0) --faults_.puts_left;
    return store_->Put(key, value);
  }
  absl::StatusOr<std::string> Get(absl::string_view key) const override {
    return store_->Get(key);
  }
  absl::Status DeleteRange(absl::string_view begin,
                           absl::string_view end) override {
    if (faults_.fail_delete) return absl::UnavailableError("delete failed");
    return store_->DeleteRange(begin, end);
  }
  absl::Status Flush() override {
    if (faults_.fail_flush) return absl::UnavailableError("flush failed");
    return store_->Flush();
  }
  absl::Status ForEachKey(
      const std::function<void(absl::string_view)>& fn) const override {
    return store_->ForEachKey(fn);
  }
  int64_t PhysicalBytes() const override { return store_->PhysicalBytes(); }
  absl::Status Reclaim(int64_t target_bytes) override {
    return store_->Reclaim(target_bytes);
  }

 private:
  const std::unique_ptr<PayloadStore> store_;
  Faults& faults_;
};

class FaultyMetaStore final : public MetaStore {
 public:
  FaultyMetaStore(std::unique_ptr<MetaStore> store, Faults* faults)
      : store_(std::move(store)), faults_(*faults) {}

  absl::Status Commit(absl::Span<const Write> batch) override {
    if (faults_.fail_commit) return absl::UnavailableError("commit failed");
    return store_->Commit(batch);
  }
  absl::StatusOr<std::string> Get(absl::string_view key) const override {
    return store_->Get(key);
  }
  absl::Status Scan(
      absl::string_view prefix,
      const std::function<void(absl::string_view, absl::string_view)>& fn)
      const override {
    return store_->Scan(prefix, fn);
  }

 private:
  const std::unique_ptr<MetaStore> store_;
  Faults& faults_;
};

}  // namespace overture::cache
