// The in-memory twin of the RocksDB stores: same contract, nothing survives.
#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cache/kv_cache.h"

namespace overture::cache {
namespace {

absl::Status NotStored(absl::string_view key) {
  return absl::NotFoundError(
      absl::StrCat("key ", absl::BytesToHexString(key), " is not stored"));
}

class MemoryPayloadStore final : public PayloadStore {
 public:
  absl::Status Put(absl::string_view key, absl::string_view value) override {
    absl::MutexLock lock(&mu_);
    std::string& slot = values_[std::string(key)];
    bytes_ +=
        static_cast<int64_t>(value.size()) - static_cast<int64_t>(slot.size());
    slot = std::string(value);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(absl::string_view key) const override {
    absl::ReaderMutexLock lock(&mu_);
    const auto it = values_.find(key);
    if (it == values_.end()) return NotStored(key);
    return it->second;
  }

  absl::Status DeleteRange(absl::string_view begin,
                           absl::string_view end) override {
    absl::MutexLock lock(&mu_);
    auto it = values_.lower_bound(begin);
    while (it != values_.end() && it->first < end) {
      bytes_ -= static_cast<int64_t>(it->second.size());
      it = values_.erase(it);
    }
    return absl::OkStatus();
  }

  absl::Status Flush() override { return absl::OkStatus(); }
  absl::Status Reclaim(int64_t) override { return absl::OkStatus(); }

  absl::Status ForEachKey(
      const std::function<void(absl::string_view)>& fn) const override {
    absl::ReaderMutexLock lock(&mu_);
    for (const auto& [key, unused_value] : values_) fn(key);
    return absl::OkStatus();
  }

  int64_t PhysicalBytes() const override {
    absl::ReaderMutexLock lock(&mu_);
    return bytes_;
  }

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, std::string, std::less<>> values_ ABSL_GUARDED_BY(mu_);
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

class MemoryMetaStore final : public MetaStore {
 public:
  absl::Status Commit(absl::Span<const Write> batch) override {
    absl::MutexLock lock(&mu_);
    for (const Write& write : batch) {
      if (write.is_delete) {
        pairs_.erase(write.key);
      } else {
        pairs_[write.key] = write.value;
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(absl::string_view key) const override {
    absl::ReaderMutexLock lock(&mu_);
    const auto it = pairs_.find(key);
    if (it == pairs_.end()) return NotStored(key);
    return it->second;
  }

  absl::Status Scan(
      absl::string_view prefix,
      const std::function<void(absl::string_view, absl::string_view)>& fn)
      const override {
    absl::ReaderMutexLock lock(&mu_);
    for (auto it = pairs_.lower_bound(prefix);
         it != pairs_.end() && absl::StartsWith(it->first, prefix); ++it) {
      fn(it->first, it->second);
    }
    return absl::OkStatus();
  }

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, std::string, std::less<>> pairs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

Stores OpenMemoryStores() {
  return {.meta = std::make_unique<MemoryMetaStore>(),
          .payload = std::make_unique<MemoryPayloadStore>()};
}

}  // namespace overture::cache
