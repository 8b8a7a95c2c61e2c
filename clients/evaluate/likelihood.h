// How far next-token distributions over a prefill's KV are from those over the
// dense one, on a text that goes on as it did (docs/evaluation.md, section 3).
// Thread-safe: no state.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace overture::clients {

// Means over the positions of one sample.
struct Likelihood {
  int64_t positions = 0;
  double loss = 0;       // -ln p(the text's next token), nats
  double kl = 0;         // of the pair's distribution from this one, nats
  double agreement = 0;  // share where both rank the same token first

  friend bool operator==(const Likelihood&, const Likelihood&) = default;
};

// One natural log-probability per token of the vocabulary, a row per position.
using LogProbabilities = std::vector<std::vector<float>>;

std::vector<float> LogSoftmax(absl::Span<const float> logits);

// `rows[i]` and `pair[i]` predict `tokens[i]`; all three are as long.
Likelihood CompareLikelihood(const LogProbabilities& rows,
                             const LogProbabilities& pair,
                             absl::Span<const int32_t> tokens);

}  // namespace overture::clients
