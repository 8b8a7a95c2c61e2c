// Where a model's heads look: a sketch of each head's attention from some exact
// rows of a prefill. For people, and for choosing what a selector keeps.
//
// One thread; keys are spread over OpenMP threads inside.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/kv_layout.h"
#include "engine/model_config.h"
#include "engine/row_audit.h"

namespace overture::engine {

// Shares of a head's attention mass, mean over the measured rows; they add up
// to 1. A key counts where it is met first.
struct AttentionShares {
  double sinks = 0;    // the first AttentionProfiler::kSinks keys
  double local = 0;    // the last kLocal keys up to the row
  double columns = 0;  // the kChosen keys that other rows look at most
  double slashes = 0;  // the kChosen distances at which other rows look most
  double elsewhere = 0;
};

struct HeadProfile {
  AttentionShares shares;
  // [map_rows][map_keys]: the mass that a sampled row, from first to last, has
  // in an equal stretch of the prompt's keys.
  std::vector<float> map;
};

class AttentionProfiler final : public RowObserver {
 public:
  // As many as vertical-slash forces (kernels/selectors/vertical_slash.h).
  static constexpr int64_t kSinks = 30;
  static constexpr int64_t kLocal = 100;
  static constexpr int64_t kChosen = 64;
  static constexpr int32_t kMostRows = kMaxAuditRows;
  static constexpr int64_t kMostMapKeys = 64;

  // Of a prompt of `num_tokens` >= 1 tokens that are all new. Every other
  // sampled row chooses columns and distances, the rest measure, so that a
  // column counts only if rows agree on it.
  AttentionProfiler(const ModelConfig& config, const KvLayout& layout,
                    int64_t num_tokens);

  absl::Span<const int64_t> rows() const override { return rows_; }
  void LayerObserved(int32_t layer, const QueryRows& queries,
                     const LayerKvView& kv) override;

  // The first error of a layer; FAILED_PRECONDITION until all were observed.
  absl::Status status() const;
  // REQUIRES that the layer was observed.
  const HeadProfile& head(int32_t layer, int32_t q_head) const {
    return heads_[layer * config_.num_q_heads + q_head];
  }
  int64_t map_rows() const { return static_cast<int64_t>(rows_.size()); }
  int64_t map_keys() const { return map_keys_; }
  // Key at which a stretch of the map begins.
  int64_t MapKeyBegin(int64_t i) const { return num_tokens_ * i / map_keys_; }

 private:
  // Of rows' weights, row r at weights + r * stride, [num_tokens].
  HeadProfile Profile(const float* weights, int64_t stride) const;

  const ModelConfig config_;
  const KvLayout layout_;
  const int64_t num_tokens_;
  const int64_t map_keys_;
  const std::vector<int64_t> rows_;
  std::vector<float> weights_;      // [rows, heads of a group, num_tokens]
  std::vector<HeadProfile> heads_;  // [layers, query heads]
  int32_t layers_seen_ = 0;
  absl::Status status_;
};

}  // namespace overture::engine
