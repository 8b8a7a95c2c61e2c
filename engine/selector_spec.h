// Which attention a request asks for, as plain data, and its two canonical
// forms: the text that enters a cache root and the chain rules that follow.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/selectors/vertical_slash.h"

namespace overture::engine {

struct SelectorSpec {
  enum class Kind : uint8_t { kDense = 0, kAShape = 1, kVerticalSlash = 2 };
  Kind kind = Kind::kDense;
  int32_t num_initial = 128;                  // kAShape, tokens
  int32_t num_local = 3968;                   // kAShape, tokens
  kernels::VerticalSlashSize vertical_slash;  // kVerticalSlash, every head
  // Span of the prompt whose plan is chosen at once (prefix purity, D2). A
  // multiple of kTokensPerBlock. Larger: fewer estimates, coarser reuse.
  int64_t segment_tokens = 16384;

  friend bool operator==(const SelectorSpec&, const SelectorSpec&) = default;
};

// INVALID_ARGUMENT naming field, value and limit.
absl::Status Validate(const SelectorSpec& spec);

// "dense", "a_shape/1 initial=128 local=3968", "vertical_slash/2 vertical=1000
// slash=6096 segment=16384 pure aligned". Changes whenever the bytes of the KV
// may change.
std::string PolicyText(const SelectorSpec& spec);

// True if the KV of a token depends on nothing after it: dense and A-shape.
bool IsTokenPure(const SelectorSpec& spec);

}  // namespace overture::engine
