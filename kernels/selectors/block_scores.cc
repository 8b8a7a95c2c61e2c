#include "kernels/selectors/block_scores.h"

#include <dnnl.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "kernels/selectors/ordered_bits.h"
#include "kernels/simd/simd.h"

namespace overture::kernels {
namespace {

absl::Status Bad(absl::string_view field, int64_t value,
                 absl::string_view limit) {
  return absl::InvalidArgumentError(absl::StrCat(
      "block scores: ", field, " is ", value, ", must be ", limit));
}

// The `count` entries of the largest scores, ties to the smaller index, NaN
// last. REQUIRES 1 <= count <= scores.size().
std::vector<bool> Best(absl::Span<const float> scores, size_t count) {
  // Score above, complement of the index below.
  std::vector<uint64_t> keys(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    keys[i] = uint64_t{OrderedBits(std::bit_cast<uint32_t>(scores[i]))} << 32 |
              ~static_cast<uint32_t>(i);
  }
  std::nth_element(keys.begin(), keys.begin() + (count - 1), keys.end(),
                   std::greater<uint64_t>());
  std::vector<bool> best(scores.size());
  for (size_t i = 0; i < count; ++i)
    best[~static_cast<uint32_t>(keys[i])] = true;
  return best;
}

OVERTURE_SIMD_CLONES
void Widen(const BFloat16* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + simd::kLanes <= count; i += simd::kLanes) {
    simd::Store(to + i, simd::Load(from + i));
  }
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

// Rows of a strided tensor as fp32 without gaps.
void LoadRows(DType dtype, const void* from, int64_t offset, int64_t stride_row,
              int64_t rows, int64_t columns, float* to) {
  for (int64_t i = 0; i < rows; ++i, offset += stride_row, to += columns) {
    if (dtype == DType::kF32) {
      std::copy_n(static_cast<const float*>(from) + offset, columns, to);
    } else {
      Widen(static_cast<const BFloat16*>(from) + offset, columns, to);
    }
  }
}

// log2 of the sum of 2^(logits[i] * scale) over kBlockTileRows logits, -inf
// being none.
OVERTURE_SIMD_CLONES
float LogOfSum(const float* logits, float scale) {
  simd::F32x16 top = simd::Load(logits);
  for (int i = simd::kLanes; i < kBlockTileRows; i += simd::kLanes) {
    top = simd::Max(top, simd::Load(logits + i));
  }
  float lanes[simd::kLanes];
  simd::Store(lanes, top);
  // Finite: no inf - inf where no row exists.
  float max = -1e30f;
  for (const float lane : lanes) max = std::max(max, lane * scale);
  simd::F32x16 sum = {};
  for (int i = 0; i < kBlockTileRows; i += simd::kLanes) {
    sum += simd::Exp2(simd::Load(logits + i) * scale - max);
  }
  return max + std::log2(simd::Sum(sum));
}

// Scores one query tile against rows of means; scratch of one thread.
class TileScorer {
 public:
  explicit TileScorer(const BlockScoreParams& params)
      : p_(params),
        scale_(params.scale * simd::kLog2E),
        q_(kBlockTileRows * params.head_dim) {}

  void LoadQueries(int64_t head, int64_t tile) {
    const int64_t s = p_.first_tile_begin() + tile * kBlockTileRows;
    const int64_t begin = std::max(s, p_.q_begin);
    rows_ = std::min(s + kBlockTileRows, p_.q_begin + p_.q_len) - begin;
    LoadRows(p_.dtype, p_.q,
             (begin - p_.q_begin) * p_.stride_q_row + head * p_.stride_q_head,
             p_.stride_q_row, rows_, p_.head_dim, q_.data());
  }

  // `means` is [count, head_dim]. False if the product failed.
  bool Score(const float* means, int64_t count, float* scores) {
    if (count == 0) return true;
    const int64_t d = p_.head_dim;
    logits_.resize(count * kBlockTileRows);
    if (dnnl_sgemm('N', 'T', count, rows_, d, 1.0f, means, d, q_.data(), d,
                   0.0f, logits_.data(), kBlockTileRows) != dnnl_success) {
      return false;
    }
    for (int64_t i = 0; i < count; ++i) {
      float* row = &logits_[i * kBlockTileRows];
      std::fill(row + rows_, row + kBlockTileRows,
                -std::numeric_limits<float>::infinity());
      scores[i] = LogOfSum(row, scale_);
    }
    return true;
  }

 private:
  const BlockScoreParams& p_;
  const float scale_;
  int64_t rows_ = 0;           // that exist
  std::vector<float> q_;       // [rows_, head_dim]
  std::vector<float> logits_;  // [count, kBlockTileRows]
};

// Means of one KV head as fp32.
struct Means {
  std::vector<float> blocks;  // [num_blocks, head_dim]
  std::vector<float> supers;  // [whole super-blocks, head_dim]
};

Means LoadMeans(const BlockScoreParams& p, int64_t kv_head) {
  Means means;
  const int64_t d = p.head_dim;
  const int64_t num_blocks = p.num_blocks();
  means.blocks.resize(num_blocks * d);
  LoadRows(p.dtype, p.k_means, kv_head * p.stride_mean_head, p.stride_mean_row,
           num_blocks, d, means.blocks.data());
  const int64_t num_supers = num_blocks / kBlocksPerSuperBlock;
  if (num_supers > kMaxScoredSuperBlocks) {
    means.supers.resize(num_supers * d);
    LoadRows(p.dtype, p.super_means, kv_head * p.stride_super_head,
             p.stride_super_row, num_supers, d, means.supers.data());
  }
  return means;
}

// Half-open range of blocks.
struct Run {
  int64_t begin = 0;
  int64_t end = 0;
};

// The blocks that are scored of a tile that has `num_blocks` before it, as
// ascending runs. False if a product failed.
bool RunsToScore(const Means& means, int64_t num_blocks, TileScorer& scorer,
                 std::vector<Run>* runs) {
  runs->clear();
  const int64_t num_supers = num_blocks / kBlocksPerSuperBlock;
  if (num_supers <= kMaxScoredSuperBlocks) {
    if (num_blocks > 0) runs->push_back({0, num_blocks});
    return true;
  }
  std::vector<float> scores(num_supers);
  if (!scorer.Score(means.supers.data(), num_supers, scores.data())) {
    return false;
  }
  const std::vector<bool> best = Best(scores, kMaxScoredSuperBlocks);
  const auto add = [&](int64_t begin, int64_t end) {
    if (begin == end) return;
    if (!runs->empty() && runs->back().end == begin) {
      runs->back().end = end;
    } else {
      runs->push_back({begin, end});
    }
  };
  for (int64_t i = 0; i < num_supers; ++i) {
    if (!best[i]) continue;
    add(i * kBlocksPerSuperBlock, (i + 1) * kBlocksPerSuperBlock);
  }
  add(num_supers * kBlocksPerSuperBlock, num_blocks);
  return true;
}

}  // namespace

absl::Status Validate(const BlockRule& rule) {
  if (!(rule.threshold >= 0 && rule.threshold <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "block threshold is ", rule.threshold, ", must be in [0, 1]"));
  }
  if (rule.count < 0) return Bad("count", rule.count, ">= 0");
  return absl::OkStatus();
}

absl::Status CheckBlockScores(const BlockScoreParams& params,
                              absl::Span<const BlockRule> rules) {
  if (params.dtype != DType::kBF16 && params.dtype != DType::kF32) {
    return absl::InvalidArgumentError(absl::StrCat("block scores: dtype is ",
                                                   Name(params.dtype),
                                                   ", must be bf16 or f32"));
  }
  if (params.num_kv_heads < 1 || params.num_q_heads < 1 ||
      params.num_q_heads % params.num_kv_heads != 0) {
    return Bad("num_q_heads", params.num_q_heads,
               absl::StrCat("a multiple of num_kv_heads = ",
                            params.num_kv_heads, " >= 1"));
  }
  if (params.head_dim < 1) return Bad("head_dim", params.head_dim, ">= 1");
  if (!(params.scale > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("block scores: scale is ", params.scale, ", must be > 0"));
  }
  if (params.q_begin < 0) return Bad("q_begin", params.q_begin, ">= 0");
  if (params.q_len < 1) return Bad("q_len", params.q_len, ">= 1");
  // Tile ends stay int32, as in a plan.
  const int64_t max_end =
      int64_t{std::numeric_limits<int32_t>::max()} - kBlockTileRows;
  if (params.q_len > max_end || params.q_begin > max_end - params.q_len) {
    return Bad("q_begin", params.q_begin,
               absl::StrCat("<= ", max_end, " - q_len"));
  }
  if (params.q == nullptr) {
    return absl::InvalidArgumentError("block scores: q is null");
  }
  const int64_t num_blocks = params.num_blocks();
  if (params.k_means == nullptr && num_blocks > 0) {
    return absl::InvalidArgumentError("block scores: k_means is null");
  }
  if (params.super_means == nullptr &&
      num_blocks / kBlocksPerSuperBlock > kMaxScoredSuperBlocks) {
    return absl::InvalidArgumentError("block scores: super_means is null");
  }
  if (static_cast<int64_t>(rules.size()) != params.num_q_heads) {
    return Bad("size of rules", static_cast<int64_t>(rules.size()),
               absl::StrCat("num_q_heads = ", params.num_q_heads));
  }
  for (const BlockRule& rule : rules) OVERTURE_RETURN_IF_ERROR(Validate(rule));
  return absl::OkStatus();
}

std::vector<bool> KeepBlocks(absl::Span<const float> scores,
                             const BlockRule& rule) {
  std::vector<bool> keep(scores.size(), rule.IsOn());
  if (scores.empty() || !rule.IsOn()) return keep;
  if (rule.count > 0 && static_cast<size_t>(rule.count) < scores.size()) {
    keep = Best(scores, rule.count);
  }
  if (rule.threshold > 0) {
    float top = -std::numeric_limits<float>::infinity();
    for (const float score : scores) top = std::fmax(top, score);
    const float least = top + std::log2(rule.threshold);
    for (size_t i = 0; i < scores.size(); ++i) {
      if (!(scores[i] >= least)) keep[i] = false;
    }
  }
  return keep;
}

absl::StatusOr<BlockSets> ChooseBlocksCpu(const BlockScoreParams& params,
                                          absl::Span<const BlockRule> rules,
                                          float* scores) {
  OVERTURE_RETURN_IF_ERROR(CheckBlockScores(params, rules));
  const int64_t num_blocks = params.num_blocks();
  const int64_t num_q_tiles = params.num_q_tiles();
  const int64_t d = params.head_dim;
  const int64_t group = params.num_q_heads / params.num_kv_heads;
  BlockSets sets{.q_begin = params.q_begin,
                 .q_len = params.q_len,
                 .num_heads = params.num_q_heads,
                 .num_q_tiles = num_q_tiles,
                 .num_words = BlockWords(num_blocks)};
  const int64_t num_cells = params.num_q_heads * num_q_tiles;
  sets.bits.resize(num_cells * sets.num_words);

  std::vector<Means> means(params.num_kv_heads);
#pragma omp parallel for schedule(dynamic)
  for (int64_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
    means[kv_head] = LoadMeans(params, kv_head);
  }

  std::atomic<bool> failed = false;
#pragma omp parallel
  {
    TileScorer scorer(params);
    std::vector<Run> runs;
    std::vector<float> tile_scores;
#pragma omp for schedule(dynamic)
    for (int64_t cell = 0; cell < num_cells; ++cell) {
      const int64_t head = cell / num_q_tiles;
      const int64_t tile = cell % num_q_tiles;
      if (!rules[head].IsOn()) continue;
      // Blocks before the tile.
      const int64_t before = params.first_tile_begin() / kBlockTileRows + tile;
      const Means& m = means[head / group];
      scorer.LoadQueries(head, tile);
      bool ok = RunsToScore(m, before, scorer, &runs);
      tile_scores.resize(before);
      int64_t filled = 0;
      for (const Run& run : runs) {
        ok = ok && scorer.Score(&m.blocks[run.begin * d], run.end - run.begin,
                                &tile_scores[filled]);
        filled += run.end - run.begin;
      }
      if (!ok) {
        failed = true;
        continue;
      }
      const std::vector<bool> keep = KeepBlocks(
          absl::MakeConstSpan(tile_scores).first(filled), rules[head]);
      uint32_t* bits = &sets.bits[cell * sets.num_words];
      int64_t i = 0;
      for (const Run& run : runs) {
        for (int64_t block = run.begin; block < run.end; ++block, ++i) {
          if (scores != nullptr) {
            scores[cell * num_blocks + block] = tile_scores[i];
          }
          const int64_t bit = before - block;
          if (keep[i]) bits[bit / 32] |= 1u << (bit % 32);
        }
      }
    }
  }
  if (failed) {
    return absl::InternalError("block scores: matrix product failed");
  }
  return sets;
}

}  // namespace overture::kernels
