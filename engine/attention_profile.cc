#include "engine/attention_profile.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "engine/attention_rows.h"

namespace overture::engine {
namespace {

// Marks the `count` largest entries that are not 0.
std::vector<char> Largest(const std::vector<double>& sums, int64_t count) {
  std::vector<int64_t> order(sums.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() +
                   std::min<int64_t>(count, static_cast<int64_t>(sums.size()));
  std::partial_sort(order.begin(), end, order.end(), [&](int64_t a, int64_t b) {
    return sums[a] != sums[b] ? sums[a] > sums[b] : a < b;
  });
  std::vector<char> marked(sums.size());
  std::for_each(order.begin(), end,
                [&](int64_t i) { marked[i] = sums[i] > 0; });
  return marked;
}

}  // namespace

AttentionProfiler::AttentionProfiler(const ModelConfig& config,
                                     const KvLayout& layout, int64_t num_tokens)
    : config_(config),
      layout_(layout),
      num_tokens_(num_tokens),
      map_keys_(std::min(num_tokens, kMostMapKeys)),
      rows_(AuditRows(0, 0, num_tokens, kMostRows)),
      weights_(rows_.size() * (config.num_q_heads / config.num_kv_heads) *
               num_tokens),
      heads_(config.num_layers * config.num_q_heads) {}

absl::Status AttentionProfiler::status() const {
  if (!status_.ok() || layers_seen_ == config_.num_layers) return status_;
  return absl::FailedPreconditionError(
      absl::StrCat("attention profile: ", layers_seen_, " of ",
                   config_.num_layers, " layers were observed"));
}

HeadProfile AttentionProfiler::Profile(const float* weights,
                                       int64_t stride) const {
  std::vector<double> columns(num_tokens_);
  std::vector<double> distances(num_tokens_);
  const auto for_each_row = [&](size_t first, auto fn) {
    for (size_t r = first; r < rows_.size(); r += 2) {
      const float* row = weights + static_cast<int64_t>(r) * stride;
      for (int64_t key = 0; key <= rows_[r]; ++key) {
        fn(key, rows_[r] - key, double{row[key]});
      }
    }
  };
  for_each_row(0, [&](int64_t key, int64_t distance, double mass) {
    if (key < kSinks || distance < kLocal) return;
    columns[key] += mass;
    distances[distance] += mass;
  });
  const std::vector<char> is_column = Largest(columns, kChosen);
  const std::vector<char> is_slash = Largest(distances, kChosen);

  HeadProfile profile;
  // One row measures itself.
  const size_t first = rows_.size() > 1 ? 1 : 0;
  AttentionShares& shares = profile.shares;
  for_each_row(first, [&](int64_t key, int64_t distance, double mass) {
    double& share = key < kSinks         ? shares.sinks
                    : distance < kLocal  ? shares.local
                    : is_column[key]     ? shares.columns
                    : is_slash[distance] ? shares.slashes
                                         : shares.elsewhere;
    share += mass;
  });
  const double total = shares.sinks + shares.local + shares.columns +
                       shares.slashes + shares.elsewhere;
  for (double* share : {&shares.sinks, &shares.local, &shares.columns,
                        &shares.slashes, &shares.elsewhere}) {
    *share /= total;
  }

  profile.map.resize(map_rows() * map_keys_);
  for (int64_t r = 0; r < map_rows(); ++r) {
    for (int64_t i = 0; i < map_keys_; ++i) {
      const float* row = weights + r * stride;
      profile.map[r * map_keys_ + i] = static_cast<float>(
          std::accumulate(row + MapKeyBegin(i), row + MapKeyBegin(i + 1), 0.0));
    }
  }
  return profile;
}

void AttentionProfiler::LayerObserved(int32_t layer, const QueryRows& queries,
                                      const LayerKvView& kv) {
  ++layers_seen_;
  if (!status_.ok()) return;
  const int32_t group = config_.num_q_heads / config_.num_kv_heads;
  for (int32_t kv_head = 0; kv_head < config_.num_kv_heads; ++kv_head) {
    status_ = WeightsOfRows(config_, layout_, queries, kv, kv_head,
                            absl::MakeSpan(weights_));
    if (!status_.ok()) return;
#pragma omp parallel for schedule(dynamic)
    for (int32_t i = 0; i < group; ++i) {
      heads_[layer * config_.num_q_heads + kv_head * group + i] =
          Profile(&weights_[i * num_tokens_], group * num_tokens_);
    }
  }
}

}  // namespace overture::engine
