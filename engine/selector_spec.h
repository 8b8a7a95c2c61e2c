// Which attention a request asks for, as plain data, and its two canonical
// forms: the text that enters a cache root and the chain rules that follow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/segments.h"
#include "engine/head_sizes.h"
#include "engine/model_config.h"
#include "kernels/selectors/vertical_slash.h"

namespace overture::engine {

struct SelectorSpec {
  enum class Kind : uint8_t { kDense = 0, kAShape = 1, kVerticalSlash = 2 };
  Kind kind = Kind::kDense;
  int32_t num_initial = 128;                  // kAShape, tokens
  int32_t num_local = 3968;                   // kAShape, tokens
  kernels::VerticalSlashSize vertical_slash;  // kVerticalSlash, every head...
  HeadSizes head_sizes;                       // ...unless these are not empty
  // Span of the prompt whose plan is chosen at once (prefix purity, D2), see
  // SegmentsOf. A multiple of kTokensPerBlock. Larger: fewer estimates, coarser
  // reuse.
  int64_t segment_tokens = 16384;

  friend bool operator==(const SelectorSpec&, const SelectorSpec&) = default;
};

// INVALID_ARGUMENT naming field, value and limit. With a model, also if
// head_sizes are of another one's shape.
absl::Status Validate(const SelectorSpec& spec);
absl::Status Validate(const SelectorSpec& spec, const ModelConfig& config);

// "dense", "a_shape/1 initial=128 local=3968", "vertical_slash/3 vertical=1000
// slash=6096 segment=16384 pure aligned", with head_sizes "vertical_slash/3
// heads=<their digest> segment=16384 pure aligned". Changes whenever the bytes
// of the KV may change. REQUIRES Validate(spec).ok().
std::string PolicyText(const SelectorSpec& spec);

// What each query head of a layer keeps, [num_q_heads]. REQUIRES a
// kVerticalSlash spec whose head_sizes, if any, are of that model's shape.
std::vector<kernels::VerticalSlashSize> SizesOfLayer(const SelectorSpec& spec,
                                                     int32_t layer,
                                                     int32_t num_q_heads);

// The segments of a kVerticalSlash spec: eight of segment_tokens, then four
// times as long, at most 65,536. An estimate costs as many keys as lie before
// it, so that a million tokens in 64 of 16,384 spend most of it late; 22 do
// here, and reuse stays as fine where prompts are short.
SegmentRule SegmentsOf(const SelectorSpec& spec);

// True if the KV of a token depends on nothing after it: dense and A-shape.
bool IsTokenPure(const SelectorSpec& spec);

}  // namespace overture::engine
