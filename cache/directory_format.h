// The metadata store's contents: what is stored, for whom, under which put id.
// docs/kv_format.md draws it.
//
//   key                      value
//   "v"                      format version, checksum kind, epoch
//   "e" | span key           DirectoryEntry
//   "s" | session id         the session's bytes
//
// and of the keys of the payload store: put id | layer | block, big endian, so
// that the records of one write of a span are one range.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/kv_layout.h"
#include "cache/keys.h"

namespace overture::cache {

inline constexpr uint32_t kStoreFormatVersion = 1;

// Stored: do not renumber.
enum class ChecksumKind : uint32_t { kXxh3 = 1 };

inline constexpr absl::string_view kFormatKey = "v";
inline constexpr absl::string_view kEntryPrefix = "e";
inline constexpr absl::string_view kSessionPrefix = "s";

// Which format this is, and how often the store was opened. An epoch and a
// counter make a put id, so that no id is ever used twice.
struct StoreFormat {
  uint32_t version = kStoreFormatVersion;
  ChecksumKind checksum = ChecksumKind::kXxh3;
  uint64_t epoch = 0;
};
std::string EncodeStoreFormat(const StoreFormat& format);
// FAILED_PRECONDITION names found and known version or checksum kind;
// DATA_LOSS if the bytes are no format record.
absl::StatusOr<StoreFormat> ParseStoreFormat(absl::string_view bytes);

// One stored span. Its existence publishes all its records.
struct DirectoryEntry {
  SpanInfo span;
  RootKey root;
  KvLayout layout;
  uint64_t put_id = 0;
  uint32_t last_use_bucket = 0;  // kSecondsPerUseBucket since the Unix epoch

  int64_t num_records() const {
    return int64_t{layout.num_layers} * span.num_blocks();
  }
  int64_t stored_bytes() const;  // records, headers included
  // Tokens of record `block`: all blocks are full but the last.
  int32_t block_tokens(int32_t block) const;
  friend bool operator==(const DirectoryEntry&,
                         const DirectoryEntry&) = default;
};

// Recency finer than this is lost in a restart, and a write of metadata saved.
inline constexpr int64_t kSecondsPerUseBucket = 600;

std::string EntryKey(const SpanKey& key);
std::string EncodeEntry(const DirectoryEntry& entry);
// DATA_LOSS for anything but an intact entry of this version under its own key.
absl::StatusOr<DirectoryEntry> ParseEntry(absl::string_view key,
                                          absl::string_view value);

std::string SessionKey(absl::string_view id);

inline constexpr size_t kRecordKeyBytes = 16;
std::string RecordKey(uint64_t put_id, int32_t layer, int32_t block);
// First key of a put id: [FirstRecordKey(id), FirstRecordKey(id + 1)).
std::string FirstRecordKey(uint64_t put_id);
// nullopt unless `key` has the form of a record key.
std::optional<uint64_t> PutIdOfRecordKey(absl::string_view key);

}  // namespace overture::cache
