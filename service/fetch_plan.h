// How the KV of a handle is cut into chunks: a pure function of the layout, the
// source (rows of the full KV, or a view's plan), the layers and the chunk
// limit, so that a broken stream resumes where it stopped. No gRPC, no I/O.
//
// Order: layer, then groups of rows (full) or KV heads (view), then KV heads,
// then rows. A full chunk holds as many whole blocks of 256 rows as fit (small
// models: 0.2 MB records one by one cost four times the round trips of 1 MB
// chunks), or a part of one block; a view chunk holds one KV head, since heads
// keep different positions.
//
// Immutable, so thread-safe. Borrows nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/kv_layout.h"
#include "compress/view.h"

namespace overture::service {

// Limits of FetchRequest.max_chunk_bytes. The upper one leaves room for the
// chunk's header under gRPC's default message limit of 4 MiB.
inline constexpr int32_t kMinChunkBytes = 64 << 10;
inline constexpr int32_t kMaxChunkBytes = (4 << 20) - (64 << 10);
inline constexpr int32_t kDefaultChunkBytes = 1 << 20;
// Positions take up to 5 bytes each on the wire: 6,000 of them stay below half
// of the 64 KiB left for the header.
inline constexpr int32_t kMaxViewRowsPerChunk = 6000;

struct FetchChunk {
  int32_t layer = 0;
  int32_t kv_head_begin = 0;
  int32_t num_kv_heads = 0;
  int64_t row_begin = 0;  // physical, among the rows delivered for the head
  int32_t num_rows = 0;
  int64_t stream_offset = 0;  // payload bytes before this chunk
  int64_t payload_bytes = 0;
  friend bool operator==(const FetchChunk&, const FetchChunk&) = default;
};

class FetchPlan {
 public:
  struct Range {
    int32_t layer_begin = 0;
    int32_t layer_end = 0;    // exclusive; 0: all layers
    int32_t chunk_bytes = 0;  // 0: kDefaultChunkBytes
  };

  // INVALID_ARGUMENT or OUT_OF_RANGE naming the field, the value and the
  // limit. REQUIRES: num_rows >= 0 / a plan that fits the layout, and a valid
  // layout.
  static absl::StatusOr<FetchPlan> ForFull(const KvLayout& layout,
                                           int64_t num_rows,
                                           const Range& range);
  static absl::StatusOr<FetchPlan> ForView(const KvLayout& layout,
                                           const compress::ViewPlan& view,
                                           const Range& range);

  int64_t total_bytes() const { return total_bytes_; }
  int64_t num_chunks() const { return num_chunks_; }
  // REQUIRES 0 <= index < num_chunks().
  FetchChunk chunk(int64_t index) const;

  // Index of the chunk that begins at `offset`; num_chunks() for
  // total_bytes(). INVALID_ARGUMENT inside a chunk, naming the borders around
  // it; OUT_OF_RANGE below 0 or beyond the end.
  absl::StatusOr<int64_t> ChunkAt(int64_t offset) const;

 private:
  FetchPlan() = default;
  void Append(FetchChunk chunk);

  // Full: the chunks of layer 0 only, since all layers are cut alike (a
  // million tokens in 80 layers would be 18 MiB of chunks otherwise).
  // View: all chunks.
  std::vector<FetchChunk> chunks_;
  bool per_layer_ = false;
  int32_t layer_begin_ = 0;
  int64_t layer_bytes_ = 0;  // payload of one layer, if per_layer_
  int64_t total_bytes_ = 0;
  int64_t num_chunks_ = 0;
};

}  // namespace overture::service
