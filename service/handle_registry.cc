#include "service/handle_registry.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace overture::service {

std::string RandomHex(int32_t num_bytes) {
  std::string bytes(num_bytes, '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = getrandom(bytes.data() + done, bytes.size() - done, 0);
    // Only EINTR is possible for a request this small.
    OVERTURE_CHECK(got >= 0 || errno == EINTR);
    if (got > 0) done += static_cast<size_t>(got);
  }
  return absl::BytesToHexString(bytes);
}

HandleRegistry::HandleRegistry(Options options)
    : options_(std::move(options)) {}

HandleRegistry::Reservation::~Reservation() {
  if (registry_ != nullptr) registry_->Unreserve(view_bytes_);
}

void HandleRegistry::Unreserve(int64_t view_bytes) {
  absl::MutexLock lock(&mutex_);
  --num_reserved_;
  view_bytes_ -= view_bytes;
}

absl::StatusOr<HandleRegistry::Reservation> HandleRegistry::Reserve(
    int64_t view_bytes) {
  Expire();
  absl::MutexLock lock(&mutex_);
  const int64_t used =
      static_cast<int64_t>(entries_.size()) + int64_t{num_reserved_};
  if (used >= options_.max_handles) {
    return absl::ResourceExhaustedError(
        absl::StrCat("handles: ", used, " live, limit ", options_.max_handles,
                     "; release some or wait until they expire"));
  }
  if (view_bytes > options_.max_view_bytes - view_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "views: ", view_bytes_, " bytes held, ", view_bytes,
        " more asked, limit ", options_.max_view_bytes,
        "; release handles, wait until they expire or ask for fewer rows"));
  }
  ++num_reserved_;
  view_bytes_ += view_bytes;
  return Reservation(this, view_bytes);
}

std::string HandleRegistry::Add(Reservation reservation, HandleData data,
                                absl::Duration ttl) {
  const int64_t view_bytes =
      data.view.has_value() ? data.view->TotalBytes() : 0;
  std::string id = RandomHex(16);
  Entry entry{.data = std::make_shared<const HandleData>(std::move(data)),
              .expires = options_.now() + ttl,
              .view_bytes = view_bytes};
  absl::MutexLock lock(&mutex_);
  --num_reserved_;
  view_bytes_ += view_bytes - reservation.view_bytes_;
  reservation.registry_ = nullptr;
  entries_.emplace(id, std::move(entry));
  return id;
}

absl::StatusOr<HandleRegistry::Found> HandleRegistry::Find(
    absl::string_view id) const {
  const absl::Time now = options_.now();
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(id);
  // The id itself is a capability: it stays out of messages and logs.
  if (it == entries_.end() || it->second.expires <= now) {
    return absl::NotFoundError("handle: unknown, released or expired");
  }
  return Found{.data = it->second.data, .expires_in = it->second.expires - now};
}

int32_t HandleRegistry::Release(absl::Span<const std::string> ids) {
  const absl::Time now = options_.now();
  // Dropped outside the lock: a lease takes the cache's own lock.
  std::vector<Entry> dropped;
  int32_t released = 0;
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& id : ids) {
      const auto it = entries_.find(id);
      if (it == entries_.end()) continue;
      if (it->second.expires > now) ++released;
      view_bytes_ -= it->second.view_bytes;
      dropped.push_back(std::move(it->second));
      entries_.erase(it);
    }
  }
  return released;
}

void HandleRegistry::Expire() {
  const absl::Time now = options_.now();
  std::vector<Entry> dropped;
  absl::MutexLock lock(&mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto current = it++;
    if (current->second.expires > now) continue;
    view_bytes_ -= current->second.view_bytes;
    dropped.push_back(std::move(current->second));
    entries_.erase(current);
  }
}

void HandleRegistry::Clear() {
  absl::flat_hash_map<std::string, Entry> dropped;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, entry] : entries_) view_bytes_ -= entry.view_bytes;
  dropped.swap(entries_);
}

int32_t HandleRegistry::size() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int32_t>(entries_.size());
}

absl::Duration HandleRegistry::NextExpiry() const {
  const absl::Time now = options_.now();
  absl::MutexLock lock(&mutex_);
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, entry] : entries_) {
    next = std::min(next, entry.expires);
  }
  return next - now;
}

}  // namespace overture::service
