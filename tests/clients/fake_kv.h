// KV with known bytes, as a server would send it: for tests of what receives
// KV. Thread-safe: no state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "clients/cpp/kv_sink.h"
#include "overture/v1/kv_cache.pb.h"

namespace overture::testing {

// 2 layers, 2 KV heads, head dim 4, f32. Full: `kFakeTokens` rows. View: head h
// of layer l holds 3 + l + h rows at ascending positions.
inline constexpr int64_t kFakeTokens = 10;
v1::DescribeResponse FakeDescription();

// The whole stream: begin, one chunk per (layer, head, at most two rows) for
// the view, per (layer, at most four rows) for the full KV, end.
std::vector<v1::KvChunk> FakeStream(bool view);

// Payload and checksum of a chunk from its other fields: element values name
// their layer, head, position and kind.
void FillPayload(v1::KvData* data);

// Payload bytes of the chunks that are data.
int64_t PayloadBytes(const std::vector<v1::KvChunk>& chunks);

// Keeps what it receives, as text "layer/head/row@position" in order, and
// counts rows whose bytes are not those of FillPayload.
class RecordingSink : public clients::KvSink {
 public:
  absl::Status Begin(const clients::KvFetchInfo& info) override;
  absl::Status Rows(const clients::KvRows& rows) override;

  int begins = 0;
  int64_t wrong_rows = 0;
  std::vector<std::string> rows_seen;
  absl::Status answer;  // what Rows returns
};

// What a RecordingSink holds after the whole stream.
std::vector<std::string> ExpectedRows(bool view);

}  // namespace overture::testing
