#include "service/session_store.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "service/handle_registry.h"

namespace overture::service {
namespace {

std::string Context(absl::string_view id) {
  return absl::StrCat("session '", id, "'");
}

}  // namespace

SessionStore::SessionStore(cache::KvCache* cache, Options options)
    : cache_(cache), options_(std::move(options)) {}

void SessionStore::Hold(absl::string_view id) {
  absl::MutexLock lock(&mutex_);
  const auto is_free = [this, id]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto it = entries_.find(id);
    return it == entries_.end() || !it->second.claimed;
  };
  mutex_.Await(absl::Condition(&is_free));
  entries_[id].claimed = true;
}

void SessionStore::Unhold(absl::string_view id) {
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(id);
  it->second.claimed = false;
  // Entries of sessions that do not exist would pile up under guessed ids.
  if (!it->second.version.has_value()) entries_.erase(it);
}

absl::StatusOr<SessionRecord> SessionStore::Get(absl::string_view id) {
  std::string bytes;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = entries_.find(id);
    if (it != entries_.end()) bytes = it->second.unstored;
  }
  if (bytes.empty()) {
    absl::StatusOr<std::string> stored = cache_->GetSession(id);
    if (absl::IsNotFound(stored.status())) {
      return absl::NotFoundError(absl::StrCat(Context(id), ": unknown"));
    }
    if (!stored.ok()) return WithContext(stored.status(), Context(id));
    bytes = *std::move(stored);
  }
  absl::StatusOr<SessionRecord> record =
      DecodeSessionRecord(bytes, options_.head_sizes);
  if (!record.ok()) return WithContext(record.status(), Context(id));
  return record;
}

absl::StatusOr<SessionRecord> SessionStore::ReadHeld(absl::string_view id) {
  absl::StatusOr<SessionRecord> record = Get(id);
  absl::MutexLock lock(&mutex_);
  std::optional<Version>& version = entries_[id].version;
  version.reset();
  if (record.ok()) version = Version{record->incarnation, record->num_turns};
  return record;
}

absl::StatusOr<std::string> SessionStore::Create(
    absl::string_view wanted, const engine::SelectorSpec& selector) {
  const std::string id = wanted.empty() ? RandomHex(16) : std::string(wanted);
  // Concurrent creations may pass the limit by their number: it bounds memory,
  // exactness buys nothing.
  if (const int64_t sessions = size(); sessions >= options_.max_sessions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("sessions: ", sessions, " exist, limit ",
                     options_.max_sessions, "; delete some"));
  }
  Hold(id);
  const absl::Cleanup unhold = [&] { Unhold(id); };
  const absl::StatusOr<SessionRecord> existing = ReadHeld(id);
  if (existing.ok()) {
    return absl::AlreadyExistsError(absl::StrCat(Context(id), ": exists"));
  }
  if (!absl::IsNotFound(existing.status())) return existing.status();

  SessionRecord record;
  (void)absl::SimpleHexAtoi(RandomHex(8), &record.incarnation);
  record.selector = selector;
  record.created_unix_ms = absl::ToUnixMillis(options_.now());
  record.updated_unix_ms = record.created_unix_ms;
  OVERTURE_RETURN_IF_ERROR(WithContext(
      cache_->PutSession(id, EncodeSessionRecord(record)), Context(id)));
  absl::MutexLock lock(&mutex_);
  entries_[id].version = Version{record.incarnation, record.num_turns};
  return id;
}

absl::Status SessionStore::Delete(absl::string_view id) {
  Hold(id);
  const absl::Cleanup unhold = [&] { Unhold(id); };
  OVERTURE_RETURN_IF_ERROR(WithContext(cache_->DeleteSession(id), Context(id)));
  absl::MutexLock lock(&mutex_);
  Entry& entry = entries_[id];
  unstored_bytes_ -= static_cast<int64_t>(entry.unstored.size());
  entry.unstored.clear();
  entry.version.reset();
  return absl::OkStatus();
}

std::vector<std::string> SessionStore::List() {
  std::vector<std::string> stored = cache_->ListSessions();
  std::sort(stored.begin(), stored.end());
  return stored;
}

int64_t SessionStore::size() { return cache_->stats().num_sessions; }

absl::StatusOr<std::unique_ptr<SessionStore::Turn>> SessionStore::Begin(
    absl::string_view id) {
  Hold(id);
  const absl::Cleanup unhold = [&] { Unhold(id); };
  OVERTURE_ASSIGN_OR_RETURN(SessionRecord record, ReadHeld(id));
  return std::unique_ptr<Turn>(
      new Turn(this, std::string(id), std::move(record)));
}

SessionStore::Turn::~Turn() {
  if (!claimed_) return;
  // The prefill failed after its claim: what was committed decides.
  (void)store_->ReadHeld(id_);
  store_->Unhold(id_);
}

std::string SessionStore::Turn::Bytes(std::vector<int32_t> tokens) {
  SessionRecord next = record_;
  next.tokens = std::move(tokens);
  next.num_turns += 1;
  next.updated_unix_ms = absl::ToUnixMillis(store_->options_.now());
  bytes_ = EncodeSessionRecord(next);
  return bytes_;
}

bool SessionStore::Turn::Claim() {
  if (claimed_) return true;
  store_->Hold(id_);
  {
    absl::MutexLock lock(&store_->mutex_);
    claimed_ = store_->entries_[id_].version ==
               Version{record_.incarnation, record_.num_turns};
  }
  if (!claimed_) store_->Unhold(id_);
  return claimed_;
}

absl::Status SessionStore::Turn::End() {
  if (!Claim()) {
    return absl::AbortedError(absl::StrCat(
        Context(id_), ": another turn finished or it was deleted meanwhile"));
  }
  const absl::StatusOr<std::string> stored = store_->cache_->GetSession(id_);
  const bool durable = stored.ok() && *stored == bytes_;
  absl::Status status;
  {
    absl::MutexLock lock(&store_->mutex_);
    Entry& entry = store_->entries_[id_];
    const int64_t held = static_cast<int64_t>(entry.unstored.size());
    const int64_t wanted = durable ? 0 : static_cast<int64_t>(bytes_.size());
    const int64_t after = store_->unstored_bytes_ - held + wanted;
    if (!durable && after > store_->options_.max_unstored_bytes) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          Context(id_), ": its history cannot be stored, and ", after,
          " bytes of such histories are above the limit of ",
          store_->options_.max_unstored_bytes));
    } else {
      store_->unstored_bytes_ = after;
      entry.unstored = durable ? std::string() : bytes_;
      entry.version = Version{record_.incarnation, record_.num_turns + 1};
    }
  }
  if (status.ok() && !durable) {
    Log(Severity::kWarning,
        absl::StrCat("service: ", Context(id_),
                     " is held in memory only: it could not be stored"));
  }
  claimed_ = false;
  store_->Unhold(id_);
  return status;
}

}  // namespace overture::service
