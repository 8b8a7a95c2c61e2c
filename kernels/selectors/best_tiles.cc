#include "kernels/selectors/best_tiles.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/selectors/ordered_bits.h"

namespace overture::kernels {
namespace {

// The finaliser of SplitMix64 (Steele et al., OOPSLA 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Ranges of the kept tiles of one query tile.
std::vector<KeyRange> Ranges(const std::vector<bool>& kept, int32_t tile_keys) {
  std::vector<KeyRange> ranges;
  for (size_t tile = 0; tile < kept.size(); ++tile) {
    if (!kept[tile]) continue;
    if (tile > 0 && kept[tile - 1]) {
      ++ranges.back().num_tiles;
    } else {
      ranges.push_back(
          {.begin = static_cast<int32_t>(tile) * tile_keys, .num_tiles = 1});
    }
  }
  return ranges;
}

// `num_own` tiles at the end are kept whatever they score.
std::vector<bool> KeepBest(absl::Span<const float> scores, int64_t num_own,
                           float density) {
  const int64_t count = static_cast<int64_t>(scores.size());
  const int64_t num_kept = std::max(
      num_own,
      static_cast<int64_t>(std::ceil(density * static_cast<float>(count))));
  std::vector<bool> kept(count);
  std::fill(kept.end() - num_own, kept.end(), true);
  std::vector<int32_t> others(count - num_own);
  std::iota(others.begin(), others.end(), 0);
  const auto rank = [&](int32_t tile) {
    return OrderedBits(std::bit_cast<uint32_t>(scores[tile]));
  };
  const auto end = others.begin() + (num_kept - num_own);
  std::nth_element(others.begin(), end, others.end(),
                   [&](int32_t a, int32_t b) {
                     return rank(a) != rank(b) ? rank(a) > rank(b) : a < b;
                   });
  for (auto tile = others.begin(); tile != end; ++tile) kept[*tile] = true;
  return kept;
}

}  // namespace

absl::StatusOr<TilePlan> BestTilesPlan(const PlanShape& shape,
                                       int32_t num_lists, float density,
                                       const DenseRows& dense,
                                       TileScores scores) {
  OVERTURE_RETURN_IF_ERROR(Validate(shape));
  if (num_lists < 1 || !(density > 0 && density <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_lists is ", num_lists, ", must be >= 1, density ",
                     density, ", must be within (0, 1]"));
  }
  TilePlan plan;
  plan.tile_rows = shape.tile_rows;
  plan.tile_keys = shape.tile_keys;
  plan.q_begin = shape.q_begin;
  plan.q_len = shape.q_len;
  plan.kv_len = shape.kv_len;
  plan.num_lists = num_lists;
  const int64_t num_tiles = plan.num_q_tiles();
  const int64_t q_end = shape.q_begin + shape.q_len;
  std::vector<std::vector<KeyRange>> cells(plan.num_cells());
#pragma omp parallel for schedule(dynamic)
  for (int64_t cell = 0; cell < plan.num_cells(); ++cell) {
    const int64_t q_tile = cell % num_tiles;
    const int64_t begin = plan.first_tile_begin() + q_tile * shape.tile_rows;
    const int64_t end = std::min(begin + shape.tile_rows, q_end);
    const int64_t count = (end + shape.tile_keys - 1) / shape.tile_keys;
    std::vector<bool> kept(count, true);
    if (!dense.Hold(begin, shape.tile_rows, q_end)) {
      std::vector<float> values(count);
      scores(static_cast<int32_t>(cell / num_tiles), q_tile,
             absl::MakeSpan(values));
      kept = KeepBest(values, count - begin / shape.tile_keys, density);
    }
    cells[cell] = Ranges(kept, shape.tile_keys);
  }
  plan.range_offsets.push_back(0);
  for (const std::vector<KeyRange>& ranges : cells) {
    plan.ranges.insert(plan.ranges.end(), ranges.begin(), ranges.end());
    plan.range_offsets.push_back(static_cast<int64_t>(plan.ranges.size()));
  }
  plan.interval_offsets.assign(plan.num_cells() + 1, 0);
  plan.column_offsets.assign(num_lists + 1, 0);
  return plan;
}

TileMasses::TileMasses(const PlanShape& shape, int32_t num_lists)
    : shape_(shape),
      num_lists_(num_lists),
      num_q_tiles_((shape.q_begin + shape.q_len - 1) / shape.tile_rows -
                   shape.q_begin / shape.tile_rows + 1),
      num_key_tiles_((shape.q_begin + shape.q_len + shape.tile_keys - 1) /
                     shape.tile_keys),
      masses_(num_q_tiles_ * num_lists * num_key_tiles_) {}

TileMasses::Rows TileMasses::RowsOf(int64_t q_tile) const {
  const int64_t begin =
      (shape_.q_begin / shape_.tile_rows + q_tile) * shape_.tile_rows;
  return {std::max(begin, shape_.q_begin),
          std::min(begin + shape_.tile_rows, shape_.q_begin + shape_.q_len)};
}

void TileMasses::Add(int64_t q_tile, absl::Span<const float> column_sums) {
  const int64_t end = RowsOf(q_tile).end;
  for (int32_t list = 0; list < num_lists_; ++list) {
    float* masses =
        masses_.data() + (q_tile * num_lists_ + list) * num_key_tiles_;
    for (int64_t key = 0; key < end; ++key) {
      masses[key / shape_.tile_keys] += column_sums[list * end + key];
    }
  }
}

void TileMasses::Scores(int32_t list, int64_t q_tile,
                        absl::Span<float> scores) const {
  const auto begin =
      masses_.begin() + (q_tile * num_lists_ + list) * num_key_tiles_;
  std::copy(begin, begin + static_cast<int64_t>(scores.size()), scores.begin());
}

absl::StatusOr<TilePlan> RandomTilesPlan(const PlanShape& shape,
                                         int32_t num_heads, float density,
                                         const DenseRows& dense, uint32_t seed,
                                         int32_t layer) {
  OVERTURE_RETURN_IF_ERROR(Validate(shape));
  const int64_t first_tile = shape.q_begin / shape.tile_rows;
  return BestTilesPlan(
      shape, num_heads, density, dense,
      [&](int32_t head, int64_t q_tile, absl::Span<float> scores) {
        uint64_t state = Mix(seed);
        for (const int64_t part :
             {int64_t{layer}, int64_t{head}, first_tile + q_tile}) {
          state = Mix(state ^ static_cast<uint64_t>(part));
        }
        for (size_t tile = 0; tile < scores.size(); ++tile) {
          // 24 bits: what a float holds without rounding.
          scores[tile] = static_cast<float>(Mix(state + tile) >> 40);
        }
      });
}

}  // namespace overture::kernels
