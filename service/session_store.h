// Sessions: the token history of a conversation, kept in the KV cache's
// durable directory, and the rules by which turns change it.
//
// Thread-safe; calls may block on the disk, so they belong on a pool's thread.
//
// A turn is a compare-and-set: Begin() reads the record, Claim() at commit time
// takes the session if its version is still the same, End() gives it back. Of
// two concurrent turns the one that commits second is ABORTED, and so is a turn
// whose session was deleted meanwhile. Delete() waits for a commit under way.
//
// A turn whose commit did not reach the disk (disk full) still becomes the
// history, in memory, until a later turn is stored: the answer said
// persisted = false, and the conversation goes on.
//
// Errors: NOT_FOUND (unknown), ALREADY_EXISTS, ABORTED, RESOURCE_EXHAUSTED
// (number of sessions, or too much unstored history), DATA_LOSS (damaged
// record), FAILED_PRECONDITION (it runs by sizes per head that this server does
// not hold; it can be deleted all the same), and what the store says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cache/kv_cache.h"
#include "engine/selector_spec.h"
#include "service/session_record.h"

namespace overture::service {

class SessionStore {
 public:
  struct Options {
    int32_t max_sessions = 10000;  // a List answer stays below 4 MiB
    // History held in memory because the disk would not take it.
    int64_t max_unstored_bytes = int64_t{64} << 20;
    std::function<absl::Time()> now = absl::Now;
    engine::HeadSizes head_sizes;  // that sessions may run by; empty: none
  };

  // `cache` outlives the store.
  SessionStore(cache::KvCache* cache, Options options);
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  // An empty `id`: one is made. The id is validated by the caller. Returns it.
  absl::StatusOr<std::string> Create(absl::string_view id,
                                     const engine::SelectorSpec& selector);
  // As before or as after a commit that is under way; does not wait for it.
  absl::StatusOr<SessionRecord> Get(absl::string_view id);
  absl::Status Delete(absl::string_view id);  // OK if absent
  std::vector<std::string> List();            // ascending
  int64_t size();

  // One turn over a session. Movable through unique_ptr only; used by one
  // request, Claim() from whatever thread commits. Its destructor abandons the
  // turn.
  class Turn {
   public:
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    const SessionRecord& record() const { return record_; }

    // Bytes to commit: the history with `tokens` (all of it, old and new).
    std::string Bytes(std::vector<int32_t> tokens);

    // True if the session has not moved on; then nobody else can change it
    // until End() or the destructor. Called by the engine right before its
    // commit; waits for another turn's commit under way.
    bool Claim();

    // After a successful prefill, with the bytes of Bytes(): makes sure that
    // they are the history, in memory if they are not on disk. ABORTED if the
    // session moved on.
    absl::Status End();

   private:
    friend class SessionStore;
    Turn(SessionStore* store, std::string id, SessionRecord record)
        : store_(store), id_(std::move(id)), record_(std::move(record)) {}
    SessionStore* const store_;
    const std::string id_;
    SessionRecord record_;
    std::string bytes_;
    bool claimed_ = false;
  };
  absl::StatusOr<std::unique_ptr<Turn>> Begin(absl::string_view id);

 private:
  struct Version {
    uint64_t incarnation = 0;
    int32_t num_turns = 0;
    friend bool operator==(const Version&, const Version&) = default;
  };
  struct Entry {
    bool claimed = false;
    std::optional<Version> version;  // none: not known to exist
    std::string unstored;            // bytes that the disk would not take
  };

  // Waits until nobody holds the session, then holds it.
  void Hold(absl::string_view id);
  void Unhold(absl::string_view id);
  // REQUIRES the session is held by the caller. Get, noting the version.
  absl::StatusOr<SessionRecord> ReadHeld(absl::string_view id);

  cache::KvCache* const cache_;
  const Options options_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  int64_t unstored_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace overture::service
