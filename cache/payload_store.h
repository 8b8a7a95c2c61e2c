// Where KV records lie: opaque values of up to a few MiB by key. The seam that
// lets plain files, ingested tables or a remote store take RocksDB's place.
// Thread-safe. Checksums are the caller's (record_format.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace overture::cache {

class PayloadStore {
 public:
  virtual ~PayloadStore() = default;

  // Readable at once, durable after Flush. Keys are written once.
  // RESOURCE_EXHAUSTED when the medium is full, UNAVAILABLE on an I/O error.
  virtual absl::Status Put(absl::string_view key, absl::string_view value) = 0;

  // NOT_FOUND, or DATA_LOSS if the medium reports damage.
  virtual absl::StatusOr<std::string> Get(absl::string_view key) const = 0;

  // Keys in [begin, end) are gone for readers when this returns; their bytes
  // come back later.
  virtual absl::Status DeleteRange(absl::string_view begin,
                                   absl::string_view end) = 0;

  // What was put before is durable when this returns OK.
  virtual absl::Status Flush() = 0;

  // Calls `fn` with every key, ascending, values unread; for recovery.
  virtual absl::Status ForEachKey(
      const std::function<void(absl::string_view)>& fn) const = 0;

  // Bytes on the medium, garbage included, as of the last Flush.
  virtual int64_t PhysicalBytes() const = 0;

  // Gives back bytes of deleted keys until PhysicalBytes is at most
  // `target_bytes` or none is left to give. Tries the cheap ways first, yet may
  // rewrite all that is stored: for a background thread, when space presses.
  virtual absl::Status Reclaim(int64_t target_bytes) = 0;
};

// Small ordered key-value pairs, committed in atomic, durable batches: the
// directory of records, sessions, the store's own format version.
class MetaStore {
 public:
  virtual ~MetaStore() = default;

  struct Write {
    std::string key;
    // absl::nullopt-like: no value deletes the key.
    bool is_delete = false;
    std::string value;
  };
  // All or nothing, durable on return.
  virtual absl::Status Commit(absl::Span<const Write> batch) = 0;

  virtual absl::StatusOr<std::string> Get(absl::string_view key) const = 0;

  // Every pair whose key starts with `prefix`, ascending.
  virtual absl::Status Scan(
      absl::string_view prefix,
      const std::function<void(absl::string_view key, absl::string_view value)>&
          fn) const = 0;
};

}  // namespace overture::cache
