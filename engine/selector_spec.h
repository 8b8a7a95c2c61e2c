// Which attention a request asks for, as plain data, and its two canonical
// forms: the text that enters a cache root and the chain rules that follow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/segments.h"
#include "engine/head_sizes.h"
#include "engine/model_config.h"
#include "kernels/selectors/static_plans.h"
#include "kernels/selectors/vertical_slash.h"

namespace overture::engine {

// Queries of a whole segment are held at once, which admission counts on.
inline constexpr int64_t kMaxSegmentTokens = 262144;

struct SelectorSpec {
  // Numbers are those of old session records: do not renumber.
  enum class Kind : uint8_t {
    kDense = 0,
    kAShape = 1,    // sinks and a sliding window
    kDynamic = 2,   // columns, distances and blocks by scores, per head
    kTriShape = 3,  // A-shape, the last rows of a segment dense
    // The two ends of a table: no choice at all, and the best one there is.
    kRandomBlocks = 4,
    kOracle = 5,
  };
  Kind kind = Kind::kDense;
  int32_t num_initial = 128;  // kAShape, kTriShape, tokens
  int32_t num_local = 3968;   // kAShape, kTriShape, tokens
  // kTriShape: rows, counted back from the end of the segment, or of the
  // prompt in its unfinished one.
  int32_t num_last = 128;
  kernels::VerticalSlashSize vertical_slash;  // kDynamic, every head...
  HeadSizes head_sizes;                       // ...unless these are not empty
  // kDynamic: one choice for the whole prompt, by its last queries, as
  // MInference makes it. Not prefix-pure: what is stored serves the
  // continuations of that very prompt alone.
  bool whole_prompt = false;
  // kRandomBlocks, kOracle: share of a query tile's causal key tiles that it
  // keeps, (0, 1].
  float block_density = 0.1f;
  uint32_t seed = 1;  // kRandomBlocks
  // Span of the prompt whose plan is chosen at once (prefix purity, D2), see
  // SegmentsOf. A multiple of kTokensPerBlock. Larger: fewer estimates, coarser
  // reuse.
  int64_t segment_tokens = 16384;

  // Any kind but kDense: segments (for kAShape and kRandomBlocks, token blocks)
  // that end at or before this position are dense, in prompts of any length. A
  // multiple of kTokensPerBlock; 0: none. Where choosing costs more than it
  // saves.
  int64_t dense_until = 0;
  // Any kind: a key tile is skipped inside the attention kernel where no
  // weight of it could exceed this share of the largest so far, [0, 1); 0:
  // never (BLASST, arXiv 2512.12087).
  float skip_threshold = 0;

  friend bool operator==(const SelectorSpec&, const SelectorSpec&) = default;
};

// INVALID_ARGUMENT naming field, value and limit. With a model, also if
// head_sizes are of another one's shape.
absl::Status Validate(const SelectorSpec& spec);
absl::Status Validate(const SelectorSpec& spec, const ModelConfig& config);

// "dense", "a_shape/1 initial=128 local=3968", "vertical_slash/5 vertical=1000
// slash=6096 forced=30,100 segment=16384 pure", with head_sizes
// "vertical_slash/5 heads=<their digest> segment=16384 pure"; what is switched
// on beside follows by name. Changes whenever the bytes of the KV may change.
// REQUIRES Validate(spec).ok().
std::string PolicyText(const SelectorSpec& spec);

// OUT_OF_RANGE for a prompt that is longer than a whole_prompt spec takes,
// kMaxSegmentTokens.
absl::Status CheckLength(const SelectorSpec& spec, int64_t num_tokens);

// What each query head of a layer keeps, [num_q_heads]. REQUIRES a kDynamic
// spec whose head_sizes, if any, are of that model's shape.
std::vector<kernels::VerticalSlashSize> SizesOfLayer(const SelectorSpec& spec,
                                                     int32_t layer,
                                                     int32_t num_q_heads);

// Whether any head of any layer of a kDynamic spec has `property`, a predicate
// on its size; false for other kinds.
template <typename Property>
bool AnyHead(const SelectorSpec& spec, Property property) {
  if (spec.kind != SelectorSpec::Kind::kDynamic) return false;
  if (spec.head_sizes.empty()) return property(spec.vertical_slash);
  for (int32_t layer = 0; layer < spec.head_sizes.num_layers(); ++layer) {
    for (const kernels::VerticalSlashSize& size :
         spec.head_sizes.layer(layer)) {
      if (property(size)) return true;
    }
  }
  return false;
}

// Whether dense_until makes the rows of a segment dense that ends, or of which
// the prompt ends, at `end`; false for a token-pure spec, which has
// DenseRowsOf.
bool IsDenseSegment(const SelectorSpec& spec, int64_t end);

// The dense rows of the segment that ends at `end`, where a token-pure or
// kTriShape spec has some.
kernels::DenseRows DenseRowsOf(const SelectorSpec& spec, int64_t end);

// UNIMPLEMENTED saying that a back end does not run it yet.
absl::Status NotYet(absl::string_view field);

// The segments of a spec that is not token-pure. They grow with what lies
// before them, at most to kMaxSegmentTokens: an estimate costs as many keys as
// lie before its segment's end, so that a million tokens in 64 segments of
// 16,384 would spend most of it late; 12 do here, and reuse stays as fine where
// prompts are short. A whole_prompt spec has one segment.
SegmentRule SegmentsOf(const SelectorSpec& spec);

// True if the KV of a token depends on nothing after it: dense, A-shape and
// random blocks. Of the others, its segment is chosen as one.
bool IsTokenPure(const SelectorSpec& spec);

}  // namespace overture::engine
