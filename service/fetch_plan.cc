#include "service/fetch_plan.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace overture::service {
namespace {

absl::StatusOr<FetchPlan::Range> Resolve(const KvLayout& layout,
                                         FetchPlan::Range range) {
  if (range.chunk_bytes == 0) range.chunk_bytes = kDefaultChunkBytes;
  if (range.chunk_bytes < kMinChunkBytes ||
      range.chunk_bytes > kMaxChunkBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_chunk_bytes: ", range.chunk_bytes, " is not in [",
                     kMinChunkBytes, ", ", kMaxChunkBytes, "]"));
  }
  if (range.layer_end == 0) range.layer_end = layout.num_layers;
  if (range.layer_begin < 0 || range.layer_begin >= layout.num_layers) {
    return absl::OutOfRangeError(
        absl::StrCat("layer_begin: ", range.layer_begin, " is not in [0, ",
                     layout.num_layers, ")"));
  }
  if (range.layer_end < 0 || range.layer_end > layout.num_layers) {
    return absl::OutOfRangeError(absl::StrCat("layer_end: ", range.layer_end,
                                              " is not in [0, ",
                                              layout.num_layers, "]"));
  }
  if (range.layer_end <= range.layer_begin) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer_end: ", range.layer_end, " is not above ",
                     "layer_begin ", range.layer_begin));
  }
  return range;
}

}  // namespace

void FetchPlan::Append(FetchChunk chunk) {
  chunk.stream_offset = total_bytes_;
  total_bytes_ += chunk.payload_bytes;
  chunks_.push_back(chunk);
}

absl::StatusOr<FetchPlan> FetchPlan::ForFull(const KvLayout& layout,
                                             int64_t num_rows,
                                             const Range& requested) {
  OVERTURE_ASSIGN_OR_RETURN(const Range range, Resolve(layout, requested));
  FetchPlan plan;
  plan.per_layer_ = true;
  plan.layer_begin_ = range.layer_begin;
  const int64_t row_bytes = 2 * layout.HeadBytes(1);  // K and V of one head
  // Whole blocks with all their heads, at least one.
  const int64_t group_rows =
      std::max<int64_t>(1, range.chunk_bytes / (layout.num_kv_heads *
                                                row_bytes * kTokensPerBlock)) *
      kTokensPerBlock;
  for (int64_t begin = 0; begin < num_rows; begin += group_rows) {
    const int64_t rows = std::min(group_rows, num_rows - begin);
    // As many heads as fit with all their rows; else one head, cut by rows.
    const int64_t heads = std::clamp<int64_t>(
        range.chunk_bytes / (rows * row_bytes), 1, layout.num_kv_heads);
    const int64_t max_rows =
        std::min<int64_t>(rows, range.chunk_bytes / row_bytes);
    for (int64_t head = 0; head < layout.num_kv_heads; head += heads) {
      const int64_t num_heads =
          std::min<int64_t>(heads, layout.num_kv_heads - head);
      for (int64_t row = 0; row < rows; row += max_rows) {
        const int64_t chunk_rows = std::min(max_rows, rows - row);
        plan.Append(
            FetchChunk{.layer = 0,
                       .kv_head_begin = static_cast<int32_t>(head),
                       .num_kv_heads = static_cast<int32_t>(num_heads),
                       .row_begin = begin + row,
                       .num_rows = static_cast<int32_t>(chunk_rows),
                       .payload_bytes = num_heads * chunk_rows * row_bytes});
      }
    }
  }
  const int64_t num_layers = range.layer_end - range.layer_begin;
  plan.layer_bytes_ = plan.total_bytes_;
  plan.total_bytes_ *= num_layers;
  plan.num_chunks_ = static_cast<int64_t>(plan.chunks_.size()) * num_layers;
  return plan;
}

absl::StatusOr<FetchPlan> FetchPlan::ForView(const KvLayout& layout,
                                             const compress::ViewPlan& view,
                                             const Range& requested) {
  OVERTURE_ASSIGN_OR_RETURN(const Range range, Resolve(layout, requested));
  FetchPlan plan;
  const int64_t row_bytes = 2 * layout.HeadBytes(1);
  const int64_t max_rows =
      std::min<int64_t>(kMaxViewRowsPerChunk, range.chunk_bytes / row_bytes);
  for (int32_t layer = range.layer_begin; layer < range.layer_end; ++layer) {
    const auto& heads = view.positions[layer];
    for (size_t head = 0; head < heads.size(); ++head) {
      const int64_t rows = static_cast<int64_t>(heads[head].size());
      for (int64_t row = 0; row < rows; row += max_rows) {
        const int64_t num_rows = std::min(max_rows, rows - row);
        plan.Append(FetchChunk{.layer = layer,
                               .kv_head_begin = static_cast<int32_t>(head),
                               .num_kv_heads = 1,
                               .row_begin = row,
                               .num_rows = static_cast<int32_t>(num_rows),
                               .payload_bytes = num_rows * row_bytes});
      }
    }
  }
  plan.num_chunks_ = static_cast<int64_t>(plan.chunks_.size());
  return plan;
}

FetchChunk FetchPlan::chunk(int64_t index) const {
  if (!per_layer_) return chunks_[index];
  const int64_t per_layer = static_cast<int64_t>(chunks_.size());
  const int64_t layer = index / per_layer;
  FetchChunk chunk = chunks_[index % per_layer];
  chunk.layer = layer_begin_ + static_cast<int32_t>(layer);
  chunk.stream_offset += layer * layer_bytes_;
  return chunk;
}

absl::StatusOr<int64_t> FetchPlan::ChunkAt(int64_t offset) const {
  if (offset < 0 || offset > total_bytes_) {
    return absl::OutOfRangeError(absl::StrCat(
        "resume_offset: ", offset, " is not in [0, ", total_bytes_, "]"));
  }
  if (offset == total_bytes_) return num_chunks_;
  const int64_t layer = per_layer_ ? offset / layer_bytes_ : 0;
  const int64_t in_layer = offset - layer * layer_bytes_;
  // The last chunk that begins at or before the offset.
  const auto after = std::upper_bound(
      chunks_.begin(), chunks_.end(), in_layer,
      [](int64_t o, const FetchChunk& c) { return o < c.stream_offset; });
  const int64_t in_chunks = (after - chunks_.begin()) - 1;
  const int64_t index =
      layer * static_cast<int64_t>(chunks_.size()) + in_chunks;
  const FetchChunk found = chunk(index);
  if (found.stream_offset != offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("resume_offset: ", offset, " is inside the chunk [",
                     found.stream_offset, ", ",
                     found.stream_offset + found.payload_bytes, ")"));
  }
  return index;
}

}  // namespace overture::service
