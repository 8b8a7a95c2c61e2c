// One KV record at rest: a fixed header, then K and V of up to 256 tokens of
// one layer (base/kv_layout.h's order for the record's own token count).
// docs/kv_format.md draws it and says how it may evolve. All integers little
// endian.
//
//   offset  size  field
//        0     4  magic "OVKR"
//        4     2  version = 1
//        6     1  kind
//        7     1  codec
//        8     1  dtype
//        9     3  zero
//       12     4  num_layers
//       16     4  num_kv_heads
//       20     4  head_dim
//       24     4  layer
//       28     4  block, counted from the span's first token
//       32     4  num_tokens
//       36     4  zero
//       40     8  put id
//       48    32  span key
//       80     8  payload size in bytes
//       88     8  XXH3-64 of the payload
//       96    24  zero
//      120     8  XXH3-64 of bytes [0, 120)
//      128        payload
//
// Errors: DATA_LOSS, always: a record that cannot be read is a lost record,
// whatever the reason, and the message has the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/kv_layout.h"
#include "cache/keys.h"

namespace overture::cache {

inline constexpr uint16_t kRecordVersion = 1;
inline constexpr size_t kRecordHeaderBytes = 128;

// Stored: do not renumber.
enum class RecordKind : uint8_t { kLayerKv = 1 };
enum class RecordCodec : uint8_t { kRaw = 1 };

struct RecordHeader {
  RecordKind kind = RecordKind::kLayerKv;
  RecordCodec codec = RecordCodec::kRaw;
  KvLayout layout;
  SpanKey span_key;
  uint64_t put_id = 0;  // of the write that made it; never used twice
  int32_t layer = 0;
  int32_t block = 0;
  int32_t num_tokens = 0;  // 1 .. kTokensPerBlock

  int64_t payload_bytes() const { return layout.LayerBytes(num_tokens); }
  friend bool operator==(const RecordHeader&, const RecordHeader&) = default;
};

// Bytes of a whole record of `num_tokens` tokens.
inline int64_t RecordBytes(const KvLayout& layout, int64_t num_tokens) {
  return static_cast<int64_t>(kRecordHeaderBytes) +
         layout.LayerBytes(num_tokens);
}

// A record whose payload is written by `fill(std::byte* dst)`, payload_bytes()
// of it. A template only so that the payload is copied once.
template <typename Fill>
std::string MakeRecord(const RecordHeader& header, const Fill& fill);

// Writes the header over the first kRecordHeaderBytes of `record`, whose
// payload is complete.
void SealRecord(const RecordHeader& header, std::string& record);

// A view into the bytes it was parsed from.
struct ParsedRecord {
  RecordHeader header;
  absl::string_view payload;
};

// Accepts any bytes; reads nothing beyond them and allocates nothing.
absl::StatusOr<ParsedRecord> ParseRecord(absl::string_view record);

// ParseRecord, and the header must be `expected`. Returns the payload.
absl::StatusOr<absl::string_view> OpenRecord(const RecordHeader& expected,
                                             absl::string_view record);

template <typename Fill>
std::string MakeRecord(const RecordHeader& header, const Fill& fill) {
  std::string record(kRecordHeaderBytes + header.payload_bytes(), '\0');
  fill(reinterpret_cast<std::byte*>(record.data()) + kRecordHeaderBytes);
  SealRecord(header, record);
  return record;
}

}  // namespace overture::cache
