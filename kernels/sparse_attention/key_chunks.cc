#include "kernels/sparse_attention/key_chunks.h"

#include <algorithm>

namespace overture::kernels {
namespace {

class Cutter {
 public:
  Cutter(KeyChunks& out, int32_t max_keys) : out_(out), max_keys_(max_keys) {}

  void Add(int64_t begin, int64_t end, bool means = false) {
    while (begin < end) {
      if (out_.chunks.empty() || out_.chunks.back().num_keys == max_keys_ ||
          out_.chunks.back().means != means) {
        const auto next = static_cast<int32_t>(out_.pieces.size());
        out_.chunks.push_back(
            {.piece_begin = next, .piece_end = next, .means = means});
      }
      KeyChunk& chunk = out_.chunks.back();
      const auto count = static_cast<int32_t>(
          std::min<int64_t>(end - begin, max_keys_ - chunk.num_keys));
      if (chunk.num_keys > 0 &&
          out_.pieces.back().key_begin + out_.pieces.back().count == begin) {
        out_.pieces.back().count += count;
      } else {
        out_.pieces.push_back({.key_begin = static_cast<int32_t>(begin),
                               .count = count,
                               .offset = chunk.num_keys});
        ++chunk.piece_end;
      }
      chunk.num_keys += count;
      begin += count;
    }
  }

 private:
  KeyChunks& out_;
  const int32_t max_keys_;
};

}  // namespace

void KeyChunks::Build(const TilePlan& plan, int64_t list, int64_t tile,
                      int32_t max_keys) {
  pieces.clear();
  chunks.clear();
  Cutter cutter(*this, max_keys);
  const int64_t cell = list * plan.num_q_tiles() + tile;
  const int64_t tile_end =
      plan.first_tile_begin() + (tile + 1) * plan.tile_rows;
  for (int64_t i = plan.range_offsets[cell]; i < plan.range_offsets[cell + 1];
       ++i) {
    const KeyRange& range = plan.ranges[i];
    const int64_t end = range.begin + int64_t{range.num_tiles} * plan.tile_keys;
    cutter.Add(range.begin, std::min(end, tile_end));
  }
  const int32_t* columns = plan.columns.data() + plan.column_offsets[list];
  for (int64_t i = plan.interval_offsets[cell];
       i < plan.interval_offsets[cell + 1]; ++i) {
    const ColumnInterval& interval = plan.intervals[i];
    for (int32_t c = 0; c < interval.count; ++c) {
      const int64_t column = columns[interval.begin + c];
      cutter.Add(column, column + 1);
    }
  }
  if (plan.mean_offsets.empty()) return;
  for (int64_t i = plan.mean_offsets[cell]; i < plan.mean_offsets[cell + 1];
       ++i) {
    const BlockInterval& blocks = plan.mean_blocks[i];
    cutter.Add(blocks.begin, int64_t{blocks.begin} + blocks.count,
               /*means=*/true);
  }
}

}  // namespace overture::kernels
