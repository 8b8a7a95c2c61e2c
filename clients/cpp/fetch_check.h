// Proves that the chunks of a fetch are what its handle promised: nothing
// damaged, missing, repeated or out of place. Knows no gRPC. One thread.
//
//   check = FetchCheck::Create(description, source, layer_begin, layer_end);
//   for each stream: check.Begin(begin); check.Data(data)...; check.End(end);
//
// After a stream broke, the next one starts at offset(). Every error is
// DATA_LOSS, unless noted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/kv_layout.h"
#include "clients/cpp/kv_sink.h"
#include "overture/v1/kv_cache.pb.h"

namespace overture::clients {

// INVALID_ARGUMENT if a size is out of range or the dtype unknown.
absl::StatusOr<KvLayout> LayoutFromProto(const v1::KvLayout& layout);

class FetchCheck {
 public:
  // layer_end 0: all layers. FAILED_PRECONDITION if the view is asked for and
  // the handle has none; OUT_OF_RANGE for layers that it does not have.
  static absl::StatusOr<FetchCheck> Create(
      const v1::DescribeResponse& description, v1::FetchRequest::Source source,
      int32_t layer_begin, int32_t layer_end);

  absl::Status Begin(const v1::FetchBegin& begin);
  // OK: the chunk is whole and the next one. Counts it.
  absl::Status Data(const v1::KvData& data);
  // OK: everything has arrived.
  absl::Status End(const v1::FetchEnd& end);

  int64_t offset() const { return offset_; }  // payload bytes that arrived
  int64_t num_chunks() const { return num_chunks_; }
  // `rows` of the result borrows from this object.
  KvFetchInfo info() const;

 private:
  FetchCheck() = default;
  size_t HeadIndex(int32_t layer, int32_t kv_head) const {
    return static_cast<size_t>(layer - layer_begin_) * layout_.num_kv_heads +
           kv_head;
  }

  KvLayout layout_;
  std::string weights_digest_;
  int64_t logical_length_ = 0;
  int32_t layer_begin_ = 0;
  int32_t layer_end_ = 0;
  int64_t total_bytes_ = 0;
  std::vector<int64_t> expected_rows_;  // [layers][kv_heads]
  std::vector<int64_t> rows_;           // received, same order
  std::vector<int64_t> last_position_;  // same order; -1: none yet
  int64_t offset_ = 0;
  int64_t num_chunks_ = 0;
};

// Calls sink.Rows() for every KV head of a chunk that `Data` accepted.
absl::Status DeliverRows(const KvLayout& layout, const v1::KvData& data,
                         KvSink& sink);

}  // namespace overture::clients
