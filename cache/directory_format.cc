#include "cache/directory_format.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "cache/record_format.h"
#include "cache/wire_bytes.h"

namespace overture::cache {
namespace {

constexpr uint32_t kFormatMagic = 0x464b564f;  // "OVKF"
constexpr size_t kFormatBytes = 28;

constexpr uint16_t kEntryVersion = 1;
constexpr uint16_t kFlagTail = 1;
constexpr size_t kEntryBytes = 128;

void AppendBigEndian(uint64_t value, int bytes, std::string& out) {
  for (int i = bytes - 1; i >= 0; --i) {
    out.push_back(static_cast<char>(value >> (8 * i)));
  }
}

absl::Status BadEntry(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("directory entry: ", what));
}

}  // namespace

std::string EncodeStoreFormat(const StoreFormat& format) {
  std::string bytes(kFormatBytes, '\0');
  StoreLittle<uint32_t>(kFormatMagic, 0, bytes);
  StoreLittle<uint32_t>(format.version, 4, bytes);
  StoreLittle(static_cast<uint32_t>(format.checksum), 8, bytes);
  StoreLittle<uint64_t>(format.epoch, 12, bytes);
  StoreLittle<uint64_t>(Xxh3(bytes.data(), 20), 20, bytes);
  return bytes;
}

absl::StatusOr<StoreFormat> ParseStoreFormat(absl::string_view bytes) {
  if (bytes.size() < 12 || LoadLittle<uint32_t>(bytes, 0) != kFormatMagic) {
    return absl::DataLossError("format record of the KV store is damaged");
  }
  StoreFormat format;
  format.version = LoadLittle<uint32_t>(bytes, 4);
  if (format.version != kStoreFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("KV store has format version ", format.version,
                     ", this build reads ", kStoreFormatVersion));
  }
  const auto checksum = LoadLittle<uint32_t>(bytes, 8);
  if (checksum != static_cast<uint32_t>(ChecksumKind::kXxh3)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "KV store has checksum kind ", checksum, ", this build reads ",
        static_cast<uint32_t>(ChecksumKind::kXxh3)));
  }
  if (bytes.size() != kFormatBytes ||
      LoadLittle<uint64_t>(bytes, 20) != Xxh3(bytes.data(), 20)) {
    return absl::DataLossError("format record of the KV store is damaged");
  }
  format.epoch = LoadLittle<uint64_t>(bytes, 12);
  return format;
}

int64_t DirectoryEntry::stored_bytes() const {
  return num_records() * static_cast<int64_t>(kRecordHeaderBytes) +
         layout.TotalBytes(span.num_tokens);
}

int32_t DirectoryEntry::block_tokens(int32_t block) const {
  return static_cast<int32_t>(std::min<int64_t>(
      kTokensPerBlock, span.num_tokens - block * kTokensPerBlock));
}

std::string EntryKey(const SpanKey& key) {
  return absl::StrCat(kEntryPrefix, key.AsStringView());
}

std::string EncodeEntry(const DirectoryEntry& entry) {
  std::string bytes(kEntryBytes, '\0');
  StoreLittle<uint16_t>(kEntryVersion, 0, bytes);
  StoreLittle<uint16_t>(entry.span.is_tail ? kFlagTail : 0, 2, bytes);
  StoreLittle<uint32_t>(static_cast<uint32_t>(entry.layout.dtype), 4, bytes);
  StoreLittle(entry.layout.num_layers, 8, bytes);
  StoreLittle(entry.layout.num_kv_heads, 12, bytes);
  StoreLittle(entry.layout.head_dim, 16, bytes);
  StoreLittle(entry.last_use_bucket, 20, bytes);
  StoreLittle(entry.span.token_begin, 24, bytes);
  StoreLittle(entry.span.num_tokens, 32, bytes);
  StoreLittle(entry.put_id, 40, bytes);
  // 8 bytes at 48 are zero.
  std::memcpy(bytes.data() + 56, entry.span.parent.bytes.data(), 32);
  std::memcpy(bytes.data() + 88, entry.root.bytes.data(), 32);
  // The sum covers the key too: a value under another key is no entry.
  StoreLittle<uint64_t>(
      Xxh3(absl::StrCat(bytes.substr(0, 120), entry.span.key.AsStringView())),
      120, bytes);
  return bytes;
}

absl::StatusOr<DirectoryEntry> ParseEntry(absl::string_view key,
                                          absl::string_view value) {
  if (key.size() != kEntryPrefix.size() + 32 ||
      key.substr(0, kEntryPrefix.size()) != kEntryPrefix) {
    return BadEntry(absl::StrCat("key has ", key.size(), " bytes"));
  }
  if (value.size() != kEntryBytes) {
    return BadEntry(
        absl::StrCat("has ", value.size(), " bytes, must have ", kEntryBytes));
  }
  const auto version = LoadLittle<uint16_t>(value, 0);
  if (version != kEntryVersion) {
    return BadEntry(absl::StrCat("version is ", version, ", this build reads ",
                                 kEntryVersion));
  }
  key.remove_prefix(kEntryPrefix.size());
  if (Xxh3(absl::StrCat(value.substr(0, 120), key)) !=
      LoadLittle<uint64_t>(value, 120)) {
    return BadEntry("checksum differs");
  }
  const auto flags = LoadLittle<uint16_t>(value, 2);
  const auto dtype = LoadLittle<uint32_t>(value, 4);
  if ((flags & ~kFlagTail) != 0 || !IsValidDType(dtype) ||
      LoadLittle<uint64_t>(value, 48) != 0) {
    return BadEntry(
        absl::StrCat("flags ", flags, " or dtype ", dtype, " are unknown"));
  }
  DirectoryEntry entry;
  entry.layout = {.num_layers = LoadLittle<int32_t>(value, 8),
                  .num_kv_heads = LoadLittle<int32_t>(value, 12),
                  .head_dim = LoadLittle<int32_t>(value, 16),
                  .dtype = static_cast<DType>(dtype)};
  if (absl::Status status = Validate(entry.layout); !status.ok()) {
    return BadEntry(status.message());
  }
  entry.last_use_bucket = LoadLittle<uint32_t>(value, 20);
  entry.span.is_tail = (flags & kFlagTail) != 0;
  entry.span.token_begin = LoadLittle<int64_t>(value, 24);
  entry.span.num_tokens = LoadLittle<int64_t>(value, 32);
  entry.put_id = LoadLittle<uint64_t>(value, 40);
  // Positions are int32 token counts everywhere else: more is damage, and
  // would overflow byte counts.
  constexpr int64_t kMaxTokens = int64_t{1} << 31;
  if (entry.span.token_begin < 0 || entry.span.token_begin > kMaxTokens ||
      entry.span.num_tokens < 1 || entry.span.num_tokens > kMaxTokens) {
    return BadEntry(absl::StrCat("tokens [", entry.span.token_begin, ", +",
                                 entry.span.num_tokens, ") are out of range"));
  }
  std::memcpy(entry.span.key.bytes.data(), key.data(), 32);
  std::memcpy(entry.span.parent.bytes.data(), value.data() + 56, 32);
  std::memcpy(entry.root.bytes.data(), value.data() + 88, 32);
  if ((entry.span.token_begin == 0) != (entry.span.parent == entry.root)) {
    return BadEntry("only a span at position 0 may hang below its root");
  }
  return entry;
}

std::string SessionKey(absl::string_view id) {
  return absl::StrCat(kSessionPrefix, id);
}

std::string RecordKey(uint64_t put_id, int32_t layer, int32_t block) {
  std::string key;
  key.reserve(kRecordKeyBytes);
  AppendBigEndian(put_id, 8, key);
  AppendBigEndian(static_cast<uint32_t>(layer), 4, key);
  AppendBigEndian(static_cast<uint32_t>(block), 4, key);
  return key;
}

std::string FirstRecordKey(uint64_t put_id) { return RecordKey(put_id, 0, 0); }

std::optional<uint64_t> PutIdOfRecordKey(absl::string_view key) {
  if (key.size() != kRecordKeyBytes) return std::nullopt;
  uint64_t id = 0;
  for (int i = 0; i < 8; ++i) id = id << 8 | static_cast<uint8_t>(key[i]);
  return id;
}

}  // namespace overture::cache
