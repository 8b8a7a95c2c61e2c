#include "engine/head_search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/attention_rows.h"
#include "engine/backend.h"
#include "engine/row_pieces.h"
#include "engine/segment_tensors.h"
#include "kernels/probe_attention/probe_attention_cpu.h"
#include "kernels/tile_plan.h"

namespace overture::engine {
namespace {

using kernels::VerticalSlashIndex;
using kernels::VerticalSlashSize;

constexpr int64_t kTileKeys = 64;

// A segment that holds sampled rows: its probe's rows and those, as indices
// into the observed rows.
struct Segment {
  int64_t end = 0;
  IndexRange probe;          // neighbours, the last of the segment
  std::vector<size_t> rows;  // sampled
};

// Weighted values of one row, by key tile.
struct RowSums {
  std::vector<float> outputs;  // [key tiles, head_dim]
  std::vector<float> masses;   // [key tiles]
};

class HeadSearchImpl final : public HeadSearch, public RowObserver {
 public:
  HeadSearchImpl(const ModelConfig& config, const KvLayout& layout,
                 const Options& options)
      : config_(config),
        layout_(layout),
        options_(options),
        sums_(config.num_layers * config.num_q_heads *
              options.candidates.size()) {}

  RowObserver* BeginSample(int64_t num_tokens) override;
  absl::Status status() const override {
    if (!status_.ok() || layers_seen_ == config_.num_layers) return status_;
    return absl::FailedPreconditionError(
        absl::StrCat("head search: ", layers_seen_, " of ", config_.num_layers,
                     " layers were observed"));
  }
  std::vector<CandidateScore> Scores(int32_t layer,
                                     int32_t head) const override;

  absl::Span<const int64_t> rows() const override { return rows_; }
  void LayerObserved(int32_t layer, const QueryRows& queries,
                     const LayerKvView& kv) override {
    if (status_.ok()) status_ = RunLayer(layer, queries, kv);
    ++layers_seen_;
  }

 private:
  // Over rows, of one head and candidate.
  struct Sums {
    int64_t tiles = 0;
    int64_t dense_tiles = 0;
    double recall = 0;
    int64_t rows = 0;
    struct Output {
      double error = 0;
      double exact = 0;
      double relative() const { return exact > 0 ? error / exact : 0; }
    };
    Output spread;
    Output last;
  };
  // What a row of one head keeps of its output under a candidate.
  struct Row {
    int64_t position;
    const float* weights;      // [num_tokens]
    std::vector<float> exact;  // [head_dim]
    RowSums sums;
  };

  absl::Status RunLayer(int32_t layer, const QueryRows& queries,
                        const LayerKvView& kv);
  absl::Status RunSegment(int32_t layer, int32_t kv_head,
                          const Segment& segment, const QueryRows& queries,
                          const LayerKvView& kv);
  Row SumUp(int64_t position, const float* weights) const;
  absl::Status Measure(const VerticalSlashIndex& index, int64_t kv_len,
                       const std::vector<Row>& rows, Sums* sums) const;
  int32_t group() const { return config_.num_q_heads / config_.num_kv_heads; }
  Sums& SumsOf(int32_t layer, int32_t head, size_t candidate) {
    return sums_[(layer * config_.num_q_heads + head) *
                     options_.candidates.size() +
                 candidate];
  }

  const ModelConfig config_;
  const KvLayout layout_;
  const Options options_;
  std::vector<Sums> sums_;  // [layers, heads, candidates]

  int64_t num_tokens_ = 0;
  std::vector<int64_t> rows_;      // observed
  std::vector<int64_t> spread_;    // measured, of which the last ones...
  int64_t last_begin_ = 0;         // ...are measured from here on
  std::vector<Segment> segments_;  // of this sample
  int32_t layers_seen_ = 0;
  std::vector<float> values_;   // [num_tokens, head_dim], of a KV head
  std::vector<float> weights_;  // [rows of a segment, group, num_tokens]
  absl::Status status_;
};

RowObserver* HeadSearchImpl::BeginSample(int64_t num_tokens) {
  num_tokens_ = num_tokens;
  status_ = absl::OkStatus();
  layers_seen_ = 0;
  const int32_t num_last = options_.rows / 2;
  spread_ = AuditRows(static_cast<int32_t>(options_.seed), 0, num_tokens,
                      options_.rows - num_last);
  last_begin_ = std::max<int64_t>(0, num_tokens - num_last);
  std::vector<int64_t> sampled = spread_;
  for (int64_t row = last_begin_; row < num_tokens; ++row) {
    sampled.push_back(row);
  }
  std::sort(sampled.begin(), sampled.end());
  sampled.erase(std::unique(sampled.begin(), sampled.end()), sampled.end());
  rows_ = sampled;
  struct Bounds {
    int64_t probe_begin;
    int64_t end;
  };
  std::vector<Bounds> bounds;
  for (size_t i = 0; i < sampled.size();) {
    const int64_t end =
        std::min(options_.segments.EndOf(sampled[i]), num_tokens);
    int64_t begin = sampled[i];
    while (begin > 0 && !options_.segments.IsBoundary(begin)) --begin;
    const int64_t probe_begin =
        std::max(begin, end - int64_t{kernels::kProbeRows});
    bounds.push_back({probe_begin, end});
    for (int64_t row = probe_begin; row < end; ++row) rows_.push_back(row);
    while (i < sampled.size() && sampled[i] < end) ++i;
  }
  std::sort(rows_.begin(), rows_.end());
  rows_.erase(std::unique(rows_.begin(), rows_.end()), rows_.end());
  segments_.clear();
  for (const Bounds& bound : bounds) {
    Segment segment{.end = bound.end,
                    .probe = Within(rows_, bound.probe_begin, bound.end)};
    for (const int64_t row : sampled) {
      if (row >= bound.end ||
          (!segments_.empty() && row < segments_.back().end)) {
        continue;
      }
      segment.rows.push_back(Within(rows_, row, row + 1).begin);
    }
    segments_.push_back(std::move(segment));
  }
  return this;
}

// Values as fp32, so that each row reads them as they are summed.
void Widen(DType dtype, const std::byte* from, int64_t count, float* to) {
  if (dtype == DType::kF32) {
    std::copy_n(reinterpret_cast<const float*>(from), count, to);
    return;
  }
  const auto* values = reinterpret_cast<const BFloat16*>(from);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(values[i]);
}

absl::Status HeadSearchImpl::RunLayer(int32_t layer, const QueryRows& queries,
                                      const LayerKvView& kv) {
  values_.resize(num_tokens_ * config_.head_dim);
  for (int32_t kv_head = 0; kv_head < config_.num_kv_heads; ++kv_head) {
    Widen(layout_.dtype, kv.v + kv_head * kv.head_stride_bytes,
          num_tokens_ * config_.head_dim, values_.data());
    for (const Segment& segment : segments_) {
      OVERTURE_RETURN_IF_ERROR(
          RunSegment(layer, kv_head, segment, queries, kv));
    }
  }
  return absl::OkStatus();
}

absl::Status HeadSearchImpl::RunSegment(int32_t layer, int32_t kv_head,
                                        const Segment& segment,
                                        const QueryRows& queries,
                                        const LayerKvView& kv) {
  const int64_t q_row_bytes =
      int64_t{config_.num_q_heads} * config_.head_dim * SizeOf(layout_.dtype);
  const int64_t head_q_bytes =
      int64_t{kv_head} * group() * config_.head_dim * SizeOf(layout_.dtype);
  // What the segment's last rows look at.
  std::vector<float> columns(group() * segment.end);
  std::vector<float> distances(group() * segment.end);
  const auto probe_rows =
      static_cast<int32_t>(segment.probe.end - segment.probe.begin);
  OVERTURE_RETURN_IF_ERROR(AsInternal(kernels::ProbeAttentionCpu(
      {.dtype = layout_.dtype,
       .q = queries.q +
            static_cast<int64_t>(segment.probe.begin) * q_row_bytes +
            head_q_bytes,
       .k = kv.k + kv_head * kv.head_stride_bytes,
       .stride_q_row = int64_t{config_.num_q_heads} * config_.head_dim,
       .stride_q_head = config_.head_dim,
       .stride_k_row = config_.head_dim,
       .stride_k_head = kv.head_stride_bytes / SizeOf(layout_.dtype),
       .num_q_heads = group(),
       .num_kv_heads = 1,
       .head_dim = config_.head_dim,
       .num_rows = probe_rows,
       .kv_len = segment.end,
       .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
       .column_sums = columns.data(),
       .diagonal_sums = distances.data()})));

  // The sampled rows' weights, of which those past the segment are 0.
  std::vector<int64_t> positions;
  std::vector<std::byte> q;
  for (const size_t row : segment.rows) {
    positions.push_back(queries.positions[row]);
    const std::byte* from = queries.q + static_cast<int64_t>(row) * q_row_bytes;
    q.insert(q.end(), from, from + q_row_bytes);
  }
  const int64_t num_rows = static_cast<int64_t>(positions.size());
  LayerKvView keys = kv;
  keys.num_rows = segment.end;
  weights_.resize(num_rows * group() * segment.end);
  OVERTURE_RETURN_IF_ERROR(
      WeightsOfRows(config_, layout_, {.positions = positions, .q = q.data()},
                    keys, kv_head, absl::MakeSpan(weights_)));

  std::vector<std::vector<Row>> rows(group(), std::vector<Row>(num_rows));
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int32_t i = 0; i < group(); ++i) {
      rows[i][row] =
          SumUp(positions[row], &weights_[(row * group() + i) * segment.end]);
    }
  }
  const size_t num_candidates = options_.candidates.size();
  std::atomic<bool> failed = false;
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int32_t i = 0; i < group(); ++i) {
    for (size_t c = 0; c < num_candidates; ++c) {
      const size_t at = static_cast<size_t>(i) * segment.end;
      const VerticalSlashIndex index = kernels::SelectVerticalSlash(
          absl::MakeConstSpan(&columns[at], segment.end),
          absl::MakeConstSpan(&distances[at], segment.end),
          options_.candidates[c]);
      if (!Measure(index, segment.end, rows[i],
                   &SumsOf(layer, kv_head * group() + i, c))
               .ok()) {
        failed = true;
      }
    }
  }
  if (failed) return absl::InternalError("head search: a plan was refused");
  return absl::OkStatus();
}

HeadSearchImpl::Row HeadSearchImpl::SumUp(int64_t position,
                                          const float* weights) const {
  const int64_t dim = config_.head_dim;
  const int64_t num_tiles = position / kTileKeys + 1;
  Row row{.position = position, .weights = weights, .exact = {}, .sums = {}};
  row.exact.resize(dim);
  row.sums.outputs.resize(num_tiles * dim);
  row.sums.masses.resize(num_tiles);
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    float* output = &row.sums.outputs[tile * dim];
    const int64_t end = std::min((tile + 1) * kTileKeys, position + 1);
    for (int64_t key = tile * kTileKeys; key < end; ++key) {
      const float weight = weights[key];
      const float* value = &values_[key * dim];
      row.sums.masses[tile] += weight;
      for (int64_t j = 0; j < dim; ++j) output[j] += weight * value[j];
    }
    for (int64_t j = 0; j < dim; ++j) row.exact[j] += output[j];
  }
  return row;
}

absl::Status HeadSearchImpl::Measure(const VerticalSlashIndex& index,
                                     int64_t kv_len,
                                     const std::vector<Row>& rows,
                                     Sums* sums) const {
  const int64_t dim = config_.head_dim;
  const int64_t tile_rows = options_.tile_rows;
  std::vector<float> output(dim);
  for (const Row& row : rows) {
    const int64_t tile_begin = row.position / tile_rows * tile_rows;
    OVERTURE_ASSIGN_OR_RETURN(
        const kernels::TilePlan plan,
        kernels::BuildVerticalSlashPlan(
            {.q_begin = tile_begin,
             .q_len = std::min(tile_rows, kv_len - tile_begin),
             .kv_len = kv_len,
             .tile_rows = options_.tile_rows,
             .tile_keys = static_cast<int32_t>(kTileKeys)},
            absl::MakeConstSpan(&index, 1), kernels::RangeForm::kAligned));
    float mass = 0;
    std::fill(output.begin(), output.end(), 0.0f);
    const int64_t row_tiles = row.position / kTileKeys + 1;
    for (const kernels::KeyRange& range : plan.ranges) {
      const int64_t first = range.begin / kTileKeys;
      const int64_t last = std::min(first + range.num_tiles, row_tiles);
      for (int64_t tile = first; tile < last; ++tile) {
        mass += row.sums.masses[tile];
        const float* from = &row.sums.outputs[tile * dim];
        for (int64_t j = 0; j < dim; ++j) output[j] += from[j];
      }
    }
    for (const kernels::ColumnInterval& interval : plan.intervals) {
      for (int32_t i = 0; i < interval.count; ++i) {
        const int32_t key = plan.columns[interval.begin + i];
        const float weight = row.weights[key];
        const float* value = &values_[key * dim];
        mass += weight;
        for (int64_t j = 0; j < dim; ++j) output[j] += weight * value[j];
      }
    }
    double error = 0;
    double exact = 0;
    for (int64_t j = 0; j < dim; ++j) {
      // A row always keeps its own key, which has a weight above 0 unless that
      // underflows; then nothing of the output is left.
      const double kept = mass > 0 ? output[j] / mass : 0;
      error += (kept - row.exact[j]) * (kept - row.exact[j]);
      exact += double{row.exact[j]} * row.exact[j];
    }
    const kernels::PlanCost cost = kernels::Cost(plan);
    sums->recall += mass;
    ++sums->rows;
    if (row.position >= last_begin_) {
      sums->last.error += error;
      sums->last.exact += exact;
    }
    if (!std::binary_search(spread_.begin(), spread_.end(), row.position)) {
      continue;
    }
    sums->spread.error += error;
    sums->spread.exact += exact;
    sums->tiles += cost.key_tiles + (cost.columns + kTileKeys - 1) / kTileKeys;
    sums->dense_tiles +=
        (std::min(tile_begin + tile_rows, kv_len) + kTileKeys - 1) / kTileKeys;
  }
  return absl::OkStatus();
}

std::vector<CandidateScore> HeadSearchImpl::Scores(int32_t layer,
                                                   int32_t head) const {
  std::vector<CandidateScore> scores;
  const size_t count = options_.candidates.size();
  for (size_t c = 0; c < count; ++c) {
    const Sums& sums = sums_[(layer * config_.num_q_heads + head) * count + c];
    const auto rows = static_cast<double>(sums.rows);
    scores.push_back(
        {.density = static_cast<double>(sums.tiles) /
                    static_cast<double>(sums.dense_tiles),
         .recall = sums.recall / rows,
         .error = std::max(sums.spread.relative(), sums.last.relative())});
  }
  return scores;
}

}  // namespace

std::vector<VerticalSlashSize> DefaultCandidates() {
  std::vector<VerticalSlashSize> candidates = {
      kernels::StaticSize(128, 512), kernels::StaticSize(128, 1024),
      kernels::StaticSize(128, 2048), kernels::StaticSize(128, 3968),
      kernels::StaticSize(1024, 4096)};
  constexpr std::pair<int32_t, int32_t> kSizes[] = {
      // The paper's, and those of the released search_pattern and its v2.
      {30, 2048},
      {100, 1800},
      {500, 1500},
      {3000, 200},
      {30, 800},
      {100, 750},
      {500, 700},
      {3500, 100},
      {100, 800},
      {1000, 4096},
      {1000, 6096},
      // Cheaper, columns alone, and large.
      {30, 100},
      {100, 100},
      {200, 200},
      {500, 100},
      {1000, 100},
      {1000, 400},
      {2000, 100},
      {2000, 800},
      {4000, 2048},
      {6000, 100},
      {8000, 8000}};
  for (const auto& [vertical, slash] : kSizes) {
    candidates.push_back({.vertical = vertical, .slash = slash});
  }
  return candidates;
}

std::vector<VerticalSlashSize> AdaptiveCandidates() {
  std::vector<VerticalSlashSize> candidates;
  for (const float mass : {0.5f, 0.7f, 0.8f, 0.9f, 0.95f, 0.98f, 0.99f}) {
    candidates.push_back({.vertical = 8000, .slash = 8000, .mass = mass});
  }
  return candidates;
}

absl::StatusOr<std::unique_ptr<HeadSearch>> HeadSearch::Create(
    const ModelConfig& config, const KvLayout& layout, const Options& options) {
  const auto bad = [](absl::string_view field, int64_t value,
                      absl::string_view limit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "head search: ", field, " is ", value, ", must be ", limit));
  };
  if (options.rows < 1 || options.rows > kMaxAuditRows) {
    return bad("rows", options.rows, absl::StrCat("1 .. ", kMaxAuditRows));
  }
  if (options.tile_rows < 1) return bad("tile_rows", options.tile_rows, ">= 1");
  if (options.segments.tokens < 1) {
    return bad("segments.tokens", options.segments.tokens, ">= 1");
  }
  if (options.candidates.empty()) return bad("candidates", 0, "at least one");
  for (const VerticalSlashSize& size : options.candidates) {
    OVERTURE_RETURN_IF_ERROR(kernels::Validate(size));
  }
  return std::make_unique<HeadSearchImpl>(config, layout, options);
}

CandidateScore MeanOf(const std::vector<std::vector<CandidateScore>>& scores,
                      const std::vector<int32_t>& chosen) {
  CandidateScore mean;
  const auto count = static_cast<double>(chosen.size());
  for (size_t head = 0; head < chosen.size(); ++head) {
    const CandidateScore& score = scores[head][chosen[head]];
    mean.density += score.density / count;
    mean.recall += score.recall / count;
    mean.error += score.error / count;
  }
  return mean;
}

std::vector<int32_t> ChooseCandidates(
    const std::vector<std::vector<CandidateScore>>& scores, double density) {
  // By error + price * density, cheaper where equal.
  const auto choose = [&](double price) {
    std::vector<int32_t> chosen;
    for (const std::vector<CandidateScore>& head : scores) {
      size_t best = 0;
      const auto value = [&](size_t c) {
        return std::pair(head[c].error + price * head[c].density,
                         head[c].density);
      };
      for (size_t c = 1; c < head.size(); ++c) {
        if (value(c) < value(best)) best = c;
      }
      chosen.push_back(static_cast<int32_t>(best));
    }
    return chosen;
  };
  const auto cost = [&](const std::vector<int32_t>& chosen) {
    return MeanOf(scores, chosen).density;
  };
  // Prices on a logarithmic scale, the smallest that suffices.
  double low = -40;
  double high = 40;
  if (cost(choose(std::exp2(low))) <= density) return choose(std::exp2(low));
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (cost(choose(std::exp2(middle))) <= density ? high : low) = middle;
  }
  return choose(std::exp2(high));
}

}  // namespace overture::engine
