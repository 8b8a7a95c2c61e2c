// Handles: short-lived names of finished prefills, held by clients to fetch
// KV. A handle keeps its spans leased and its view in memory until it is
// released or expires; streams that read it share the data and outlive both.
//
// Thread-safe. Ids are 128 random bits from the operating system's generator:
// whoever knows one may read the KV, nobody can guess one.
//
// Handles and the bytes of their views are bounded. Room is reserved before the
// prefill starts, so that a finished one is never refused.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/kv_layout.h"
#include "cache/kv_cache.h"
#include "engine/backend.h"

namespace overture::service {

struct HandleData {
  KvLayout layout;
  int64_t logical_length = 0;
  // Contiguous from position 0 to logical_length; empty if the full KV was not
  // kept.
  std::vector<cache::SpanUse> spans;
  std::vector<cache::Lease> leases;  // on them
  std::optional<engine::ViewData> view;
  std::string attention_policy;
  int32_t first_token = 0;
  bool persisted = false;
  std::string session_id;  // empty without one
};

class HandleRegistry {
 public:
  struct Options {
    int32_t max_handles = 1024;
    int64_t max_view_bytes = int64_t{1} << 30;
    // Injected by tests. Monotonic is not needed: an expiry that moves with
    // the wall clock harms nobody.
    std::function<absl::Time()> now = absl::Now;
  };

  explicit HandleRegistry(Options options);
  HandleRegistry(const HandleRegistry&) = delete;
  HandleRegistry& operator=(const HandleRegistry&) = delete;

  // Room for one handle; given back by the destructor unless spent by Add.
  class Reservation {
   public:
    Reservation(Reservation&& other) noexcept { *this = std::move(other); }
    Reservation& operator=(Reservation&& other) noexcept {
      std::swap(registry_, other.registry_);
      std::swap(view_bytes_, other.view_bytes_);
      return *this;
    }
    ~Reservation();

   private:
    friend class HandleRegistry;
    Reservation(HandleRegistry* registry, int64_t view_bytes)
        : registry_(registry), view_bytes_(view_bytes) {}
    HandleRegistry* registry_ = nullptr;
    int64_t view_bytes_ = 0;
  };
  // `view_bytes`: the most its view may take. RESOURCE_EXHAUSTED naming the
  // limit that is reached.
  absl::StatusOr<Reservation> Reserve(int64_t view_bytes);

  // Returns the new handle's id.
  std::string Add(Reservation reservation, HandleData data, absl::Duration ttl);

  struct Found {
    // Shared with the registry and with other streams over the same handle:
    // the leases go when the last of them does.
    std::shared_ptr<const HandleData> data;
    absl::Duration expires_in;
  };
  // NOT_FOUND once released or expired.
  absl::StatusOr<Found> Find(absl::string_view id) const;

  // Number of ids that existed. Unknown ones are passed over.
  int32_t Release(absl::Span<const std::string> ids);

  // Drops what has expired. Find does not depend on it; memory and leases do.
  void Expire();
  // Drops all, at shutdown: leases must be gone before their cache.
  void Clear();

  int32_t size() const;
  // When the next handle expires; infinite without one.
  absl::Duration NextExpiry() const;

 private:
  struct Entry {
    std::shared_ptr<const HandleData> data;
    absl::Time expires;
    int64_t view_bytes = 0;
  };
  void Unreserve(int64_t view_bytes);

  const Options options_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  int32_t num_reserved_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t view_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // live and reserved
};

// `num_bytes` bytes from the operating system's generator, in hexadecimal.
std::string RandomHex(int32_t num_bytes);

}  // namespace overture::service
