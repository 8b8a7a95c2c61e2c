// Where a fetch puts the KV it receives. A decode worker implements it once;
// docs/clients.md shows how an engine with another layout places the rows.
//
// One thread: all calls of one fetch come from the thread that runs it. What
// the arguments point to is valid during the call. An error ends the fetch with
// that error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/kv_layout.h"

namespace overture::clients {

// What is coming. Position is logical, row is physical: a view holds fewer rows
// than there are positions, and each KV head may hold another number.
struct KvFetchInfo {
  KvLayout layout;
  int64_t logical_length = 0;  // the next token's position
  int64_t total_bytes = 0;     // of all rows together
  int32_t layer_begin = 0;     // layers [layer_begin, layer_end)
  int32_t layer_end = 0;
  std::string weights_digest;  // SHA-256, 32 bytes: only the model with these
                               // weights may decode over this KV
  // Rows of KV head h of layer l: [(l - layer_begin) * num_kv_heads + h].
  absl::Span<const int64_t> rows;
};

// Consecutive rows of one KV head of one layer. K is rotated (RoPE) at each
// row's original position: never rotate it again.
struct KvRows {
  int32_t layer = 0;
  int32_t kv_head = 0;
  int64_t row_begin = 0;  // rows of this head that came before
  int64_t num_rows = 0;   // >= 1
  // Logical position of every row, ascending; empty: row r is at position r.
  absl::Span<const uint32_t> positions;
  absl::Span<const std::byte> k;  // [num_rows][head_dim] of layout.dtype
  absl::Span<const std::byte> v;  // [num_rows][head_dim]
};

class KvSink {
 public:
  virtual ~KvSink() = default;
  // Once, before any rows.
  virtual absl::Status Begin(const KvFetchInfo& info) = 0;
  // Checked rows. Per layer and head ascending without gap or repetition, also
  // across a broken and resumed stream; the order of layers and heads is the
  // server's.
  virtual absl::Status Rows(const KvRows& rows) = 0;
};

}  // namespace overture::clients
