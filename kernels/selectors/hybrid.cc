#include "kernels/selectors/hybrid.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace overture::kernels {
namespace {

constexpr int32_t kTileKeys = 64;
static_assert(kMeanBlockKeys % kTileKeys == 0, "a block is whole tiles");

struct Keys {  // [begin, end), whole tiles
  int64_t begin = 0;
  int64_t end = 0;
};

// One list's part of the result; the offsets are relative.
struct ListPart {
  std::vector<int64_t> range_ends;  // per query tile
  std::vector<KeyRange> ranges;
  std::vector<int64_t> interval_ends;
  std::vector<ColumnInterval> intervals;
  std::vector<int64_t> mean_ends;
  std::vector<BlockInterval> mean_blocks;
};

class ListBuilder {
 public:
  ListBuilder(const TilePlan& plan, const BlockSets& sets, int64_t list,
              bool correct_means)
      : plan_(plan),
        sets_(sets),
        columns_(plan.columns.data() + plan.column_offsets[list]),
        list_(list),
        correct_means_(correct_means) {}

  ListPart Build() {
    for (int64_t tile = 0; tile < plan_.num_q_tiles(); ++tile) {
      const int64_t cell = list_ * plan_.num_q_tiles() + tile;
      before_ = plan_.first_tile_begin() / kMeanBlockKeys + tile;
      Unite(cell);
      for (const Keys& keys : spans_) {
        part_.ranges.push_back({.begin = static_cast<int32_t>(keys.begin),
                                .num_tiles = static_cast<int32_t>(
                                    (keys.end - keys.begin) / kTileKeys)});
      }
      const size_t first_interval = part_.intervals.size();
      CutColumns(cell);
      if (correct_means_) CorrectMeans(first_interval);
      part_.range_ends.push_back(static_cast<int64_t>(part_.ranges.size()));
      part_.interval_ends.push_back(
          static_cast<int64_t>(part_.intervals.size()));
      part_.mean_ends.push_back(static_cast<int64_t>(part_.mean_blocks.size()));
    }
    return std::move(part_);
  }

 private:
  // Ranges and blocks of the cell, merged into spans_.
  void Unite(int64_t cell) {
    spans_.clear();
    const auto add = [this](const Keys& keys) {
      if (!spans_.empty() && keys.begin <= spans_.back().end) {
        spans_.back().end = std::max(spans_.back().end, keys.end);
      } else {
        spans_.push_back(keys);
      }
    };
    int64_t range = plan_.range_offsets[cell];
    const auto add_ranges_to = [&](int64_t begin) {
      for (; range < plan_.range_offsets[cell + 1] &&
             plan_.ranges[range].begin <= begin;
           ++range) {
        const KeyRange& r = plan_.ranges[range];
        add({r.begin, r.begin + int64_t{r.num_tiles} * kTileKeys});
      }
    };
    for (int64_t block = 0; block < before_; ++block) {
      if (!sets_.Has(cell, before_ - block)) continue;
      const int64_t begin = block * kMeanBlockKeys;
      add_ranges_to(begin);
      add({begin, begin + kMeanBlockKeys});
    }
    add_ranges_to(plan_.kv_len + kTileKeys);
  }

  // The columns of the cell that lie in no span.
  void CutColumns(int64_t cell) {
    auto span = spans_.begin();
    for (int64_t i = plan_.interval_offsets[cell];
         i < plan_.interval_offsets[cell + 1]; ++i) {
      const int32_t* next = columns_ + plan_.intervals[i].begin;
      const int32_t* const end = next + plan_.intervals[i].count;
      while (next != end) {
        while (span != spans_.end() && span->end <= *next) ++span;
        const bool more = span != spans_.end();
        if (more && span->begin <= *next) {
          next = std::lower_bound(next, end, span->end);
          continue;
        }
        const int32_t* stop =
            more ? std::lower_bound(next, end, span->begin) : end;
        part_.intervals.push_back(
            {.begin = static_cast<int32_t>(next - columns_),
             .count = static_cast<int32_t>(stop - next)});
        next = stop;
      }
    }
  }

  void CorrectMeans(size_t first_interval) {
    std::vector<bool> kept(before_);
    for (const Keys& keys : spans_) {
      const int64_t end =
          std::min((keys.end + kMeanBlockKeys - 1) / kMeanBlockKeys, before_);
      for (int64_t b = keys.begin / kMeanBlockKeys; b < end; ++b) {
        kept[b] = true;
      }
    }
    for (size_t i = first_interval; i < part_.intervals.size(); ++i) {
      const int32_t* column = columns_ + part_.intervals[i].begin;
      for (int32_t c = 0; c < part_.intervals[i].count; ++c) {
        kept[column[c] / kMeanBlockKeys] = true;
      }
    }
    for (int64_t begin = 0; begin < before_; ++begin) {
      if (kept[begin]) continue;
      int64_t end = begin + 1;
      while (end < before_ && !kept[end]) ++end;
      part_.mean_blocks.push_back({.begin = static_cast<int32_t>(begin),
                                   .count = static_cast<int32_t>(end - begin)});
      begin = end;
    }
  }

  const TilePlan& plan_;
  const BlockSets& sets_;
  const int32_t* const columns_;
  const int64_t list_;
  const bool correct_means_;
  int64_t before_ = 0;  // whole blocks before the tile
  std::vector<Keys> spans_;
  ListPart part_;
};

template <typename T>
void Append(const std::vector<int64_t>& ends, const std::vector<T>& values,
            std::vector<int64_t>* offsets, std::vector<T>* all) {
  const auto base = static_cast<int64_t>(all->size());
  for (const int64_t end : ends) offsets->push_back(base + end);
  all->insert(all->end(), values.begin(), values.end());
}

}  // namespace

absl::StatusOr<TilePlan> AddBlocks(const TilePlan& plan, const BlockSets& sets,
                                   absl::Span<const BlockRule> rules) {
  if (plan.tile_rows != kBlockTileRows || plan.tile_keys != kTileKeys) {
    return absl::InvalidArgumentError(absl::StrCat(
        "plan tiles are ", plan.tile_rows, " x ", plan.tile_keys,
        ", blocks are added to ", kBlockTileRows, " x ", kTileKeys));
  }
  if (sets.q_begin != plan.q_begin || sets.q_len != plan.q_len ||
      sets.num_heads != plan.num_lists ||
      sets.num_q_tiles != plan.num_q_tiles()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "blocks of ", sets.num_heads, " heads and rows from ", sets.q_begin,
        " on, ", sets.q_len, " of them, do not fit a plan of ", plan.num_lists,
        " lists and rows from ", plan.q_begin, ", ", plan.q_len));
  }
  if (rules.size() != static_cast<size_t>(plan.num_lists)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rules has ", rules.size(), " heads, the plan has ", plan.num_lists));
  }

  std::vector<ListPart> parts(plan.num_lists);
#pragma omp parallel for schedule(dynamic)
  for (int32_t list = 0; list < plan.num_lists; ++list) {
    parts[list] =
        ListBuilder(plan, sets, list, rules[list].correct_means).Build();
  }

  TilePlan united{.tile_rows = plan.tile_rows,
                  .tile_keys = plan.tile_keys,
                  .q_begin = plan.q_begin,
                  .q_len = plan.q_len,
                  .kv_len = plan.kv_len,
                  .num_lists = plan.num_lists,
                  .range_offsets = {0},
                  .interval_offsets = {0},
                  .column_offsets = plan.column_offsets,
                  .columns = plan.columns};
  std::vector<int64_t> mean_offsets = {0};
  for (const ListPart& part : parts) {
    Append(part.range_ends, part.ranges, &united.range_offsets, &united.ranges);
    Append(part.interval_ends, part.intervals, &united.interval_offsets,
           &united.intervals);
    Append(part.mean_ends, part.mean_blocks, &mean_offsets,
           &united.mean_blocks);
  }
  // A plan without corrections has no offsets of them either.
  if (!united.mean_blocks.empty())
    united.mean_offsets = std::move(mean_offsets);
  return united;
}

}  // namespace overture::kernels
