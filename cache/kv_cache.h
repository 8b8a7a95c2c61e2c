// KV blocks at rest: finds the longest stored prefix of a prompt, reads and
// writes records, keeps sessions, evicts. Thread-safe.
//
// Visibility: a span is found by Match or Lookup only after the commit that
// published it, and then whole (all layers). Order on disk: records flushed,
// then one synced metadata batch, then the answer (docs/kv_format.md).
//
// Damage: a record that is missing, short, damaged or foreign is DATA_LOSS for
// its reader; its span is counted, logged and removed with all that hangs
// below it, so that the next match ends before it.
//
// Example:
//   PrefixMatch match = cache.Match(policy, tokens, /*max_tokens=*/n - 64);
//   for (const SpanUse& use : match.spans) cache.ReadLayer(...)
//   OVERTURE_ASSIGN_OR_RETURN(auto writer, cache.NewWriter(policy, spans));
//   writer->PutLayer(layer, kv);      // for every layer
//   CommitResult result = writer->Commit({});
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/kv_layout.h"
#include "cache/keys.h"
#include "cache/payload_store.h"

namespace overture::cache {

class KvCache;

// Keeps spans readable: eviction passes over them. Movable; released by the
// destructor, at the latest before the KvCache goes.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept { *this = std::move(other); }
  Lease& operator=(Lease&& other) noexcept;
  ~Lease() { Release(); }
  void Release();

 private:
  friend class KvCache;
  KvCache* cache_ = nullptr;
  std::vector<SpanKey> keys_;
};

struct PrefixMatch {
  std::vector<SpanUse> spans;  // contiguous from position 0
  int64_t num_tokens = 0;      // sum of use_tokens
  Lease lease;
};

// What became of a write. Storing is best effort: a failure is a field, not a
// failed prefill.
struct CommitResult {
  bool persisted = false;  // survives kill -9
  // True if the spans can be read (persisted, or held in memory for as long as
  // somebody leases them).
  bool readable = false;
  absl::Status status;  // why not persisted
  // The session update, if one was given, survives kill -9. It may although
  // its spans were dropped: they are then a miss for the next turn.
  bool session_persisted = false;
  int64_t bytes_written = 0;
  Lease lease;  // on the written spans
};

class KvCache {
 public:
  struct Options {
    // Bytes of records that may be stored, writes under way included; eviction
    // starts at 90% and stops at 85%. Holds for the payload's bytes on the
    // medium too: garbage is reclaimed when it would pass the limit, and a
    // write that still would is dropped. No default: the owner must choose.
    int64_t max_bytes = 0;
    // Records queued for the writer thread; beyond it a write is dropped
    // (persisted = false), never waited for. More rides out longer stalls.
    int64_t max_queued_bytes = int64_t{1} << 30;
    // Records of uncommitted or failed writes held in memory so that they can
    // be fetched all the same.
    int64_t max_memory_bytes = int64_t{1} << 30;
  };

  // Recovers: drops entries without payload and payload without an entry,
  // rebuilds byte counts. FAILED_PRECONDITION for an unknown format version.
  static absl::StatusOr<std::unique_ptr<KvCache>> Open(
      const Options& options, std::unique_ptr<MetaStore> meta,
      std::unique_ptr<PayloadStore> payload);
  ~KvCache();

  // Longest stored prefix of `tokens`, at most `max_tokens` of it, leased and
  // counted as used. The last span may be used in part (SpanUse::use_tokens).
  PrefixMatch Match(const ChainPolicy& policy, absl::Span<const int32_t> tokens,
                    int64_t max_tokens);

  // Same answer without a lease and without touching recency.
  std::vector<SpanUse> Lookup(const ChainPolicy& policy,
                              absl::Span<const int32_t> tokens,
                              int64_t max_tokens) const;

  // Leases spans by key, those held in memory included. NOT_FOUND names the
  // first that is neither.
  absl::StatusOr<Lease> Pin(absl::Span<const SpanKey> keys);

  // One record: K and V of block `block` of the span in one layer, in
  // base/kv_layout.h's order for its own token count. DATA_LOSS, NOT_FOUND;
  // FAILED_PRECONDITION if it is stored with another layout, INVALID_ARGUMENT
  // for a layer or block that the span cannot have.
  absl::StatusOr<std::string> ReadRecord(const KvLayout& layout,
                                         const SpanInfo& span, int32_t layer,
                                         int32_t block);

  // Rows [0, sum of use_tokens) of one layer into `dst`. Errors as above.
  absl::Status ReadLayer(const KvLayout& layout,
                         absl::Span<const SpanUse> spans, int32_t layer,
                         const MutableLayerKvView& dst);

  // Stores the spans of one sequence, layer by layer. Thread-compatible; used
  // by one request. Dropped without Commit, it leaves nothing behind.
  class Writer {
   public:
    virtual ~Writer() = default;
    // `kv` holds rows of absolute positions [0, end of the last span). Bytes
    // are copied before this returns; the writing happens in the background.
    // Every layer exactly once, in any order.
    virtual void PutLayer(int32_t layer, const LayerKvView& kv) = 0;
    // Waits until the records are durable, then publishes the spans and
    // `session` (id, bytes), if given, in one batch. A write that was dropped
    // does not wait. At most once.
    struct SessionUpdate {
      std::string id;
      std::string bytes;
    };
    virtual CommitResult Commit(std::optional<SessionUpdate> session) = 0;
  };
  // `spans` as PlanSpans returns them; those already stored are skipped (and
  // leased by the CommitResult like the others). INVALID_ARGUMENT if they are
  // no chain. The cache outlives the writer.
  // With kHold nothing is written: what is not stored already is kept in memory
  // for as long as its spans are leased, found by no Match.
  enum class Keep : uint8_t { kStore, kHold };
  absl::StatusOr<std::unique_ptr<Writer>> NewWriter(
      const ChainPolicy& policy, absl::Span<const SpanInfo> spans,
      Keep keep = Keep::kStore);

  // Sessions: opaque bytes under an id, durable on return.
  absl::Status PutSession(absl::string_view id, absl::string_view bytes);
  absl::StatusOr<std::string> GetSession(absl::string_view id) const;
  absl::Status DeleteSession(absl::string_view id);  // OK if absent
  std::vector<std::string> ListSessions() const;

  struct Stats {
    int64_t num_spans = 0;
    int64_t num_sessions = 0;
    int64_t stored_bytes = 0;    // committed records, headers included
    int64_t physical_bytes = 0;  // payload on the medium, garbage included
    int64_t memory_bytes = 0;    // held in memory only
    int64_t tokens_asked = 0;    // by Match
    int64_t tokens_matched = 0;
    int64_t damaged_records = 0;
    int64_t dropped_entries = 0;  // by recovery: damaged or without payload
    int64_t dropped_writes = 0;
    int64_t evicted_bytes = 0;
    int64_t live_leases = 0;
  };
  Stats stats() const;

 private:
  friend class Lease;
  friend class KvCacheWriter;  // the one Writer
  struct Impl;
  explicit KvCache(std::unique_ptr<Impl> impl);
  Lease LeaseLocked(std::vector<SpanKey> keys);
  void Unlease(absl::Span<const SpanKey> keys);
  std::unique_ptr<Impl> impl_;
};

// The two stores of a cache, both backed by what the function says.
struct Stores {
  std::unique_ptr<MetaStore> meta;
  std::unique_ptr<PayloadStore> payload;
};
Stores OpenMemoryStores();
// One RocksDB in folder `path` (made if absent, its parent must exist).
// UNAVAILABLE if another process holds it, DATA_LOSS if RocksDB's own files are
// damaged beyond a record.
absl::StatusOr<Stores> OpenRocksDbStores(absl::string_view path);

}  // namespace overture::cache
