// Searches, head by head, what to keep: on dense prefills of sample prompts,
// the exact attention output of sampled rows against what is left of it under
// each candidate size, at the cost that the attention kernel would pay.
//
// Streaming: a layer is looked at when it is done and leaves three numbers per
// head and candidate; never N x N. Of a layer of N keys it holds one KV head's
// keys and values in fp32 and, per row, a weight per key.
//
// A candidate's choice is the engine's own: the probe sums of the last rows of
// each segment, SelectVerticalSlash, aligned tiles (docs/sparse_plans.md). What
// a row keeps is its query tile's, whole key tiles included.
//
// Source: MInference, arXiv 2407.02490, section 3.2 (search by output error at
// aligned cost). We differ: cost is what our kernel computes for the sampled
// tiles, every head may cost another amount, and any number of samples counts.
//
// One thread; the work of a layer is spread over OpenMP threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/kv_layout.h"
#include "base/segments.h"
#include "engine/head_sizes.h"
#include "engine/model_config.h"
#include "engine/row_audit.h"
#include "kernels/selectors/vertical_slash.h"

namespace overture::engine {

// What was measured of one candidate of a head, over all sampled rows.
struct CandidateScore {
  // Key tiles that the kernel computes for the rows' query tiles, 64 gathered
  // columns counting as one, over dense attention's.
  double density = 0;
  double recall = 0;  // kept mass, mean over rows
  // Of the attention output: sum over rows of |kept - exact|^2 over that of
  // |exact|^2, of the spread rows or of the last ones, whichever is larger.
  double error = 0;
};

// Sizes that a search tries unless told otherwise: MInference's own grids,
// A-shapes, and between them more columns, more distances and more of both.
std::vector<kernels::VerticalSlashSize> DefaultCandidates();
// Sizes that depend on the prompt: as many columns and distances as hold a mass
// of what the probe saw.
std::vector<kernels::VerticalSlashSize> AdaptiveCandidates();

class HeadSearch {
 public:
  using Size = kernels::VerticalSlashSize;

  struct Options {
    std::vector<kernels::VerticalSlashSize> candidates;
    // Rows of each prompt that are measured, 1 .. kMaxAuditRows: half of them
    // spread, one from each of as many equal stretches, half the last ones. A
    // question stands there: a head that finds its answer does nothing of note
    // anywhere else. More: surer, and as much slower.
    int32_t rows = 32;
    uint32_t seed = 1;  // of their places within the stretches
    SegmentRule segments;
    int32_t tile_rows = 128;  // of the kernel that will run the sizes
  };

  // INVALID_ARGUMENT naming the field that does not fit.
  static absl::StatusOr<std::unique_ptr<HeadSearch>> Create(
      const ModelConfig& config, const KvLayout& layout,
      const Options& options);
  virtual ~HeadSearch() = default;

  // Observes one dense prefill of a prompt of so many tokens, all new, after
  // which status() says whether it counts: FAILED_PRECONDITION until all layers
  // were seen. Borrowed until the next call.
  virtual RowObserver* BeginSample(int64_t num_tokens) = 0;
  virtual absl::Status status() const = 0;

  // [candidates]. REQUIRES a whole sample.
  virtual std::vector<CandidateScore> Scores(int32_t layer,
                                             int32_t head) const = 0;
};

// What was measured of one candidate per head, mean over heads; `scores` are
// [heads][candidates], not empty.
CandidateScore MeanOf(const std::vector<std::vector<CandidateScore>>& scores,
                      const std::vector<int32_t>& chosen);

// One candidate per head, [heads]: those of the least sum of errors whose mean
// density is at most `density`, as far as one factor between error and density
// for all heads reaches it; the cheapest of each head if none does. `scores`
// are [heads][candidates].
std::vector<int32_t> ChooseCandidates(
    const std::vector<std::vector<CandidateScore>>& scores, double density);

}  // namespace overture::engine
