// A Llama forward pass as its papers state it: double precision, one token, one
// head, one loop at a time; no code shared with the engine beyond reading
// weights. The oracle of the layer loop on small models.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model_files.h"

namespace overture::testing {

struct NaiveForward {
  // [position][vocab]
  std::vector<std::vector<double>> logits;
  // [layer][head][position][head_dim], Q and K after RoPE.
  std::vector<std::vector<std::vector<std::vector<double>>>> q;
  std::vector<std::vector<std::vector<std::vector<double>>>> k;
  std::vector<std::vector<std::vector<std::vector<double>>>> v;
};

// A query position and a key position <= it.
struct NaivePair {
  int32_t layer;
  int32_t q_head;
  int64_t q;
  int64_t k;
};

// True if the query attends to the key.
using NaiveMask = std::function<bool(const NaivePair&)>;

// Positions count from 0. A null mask is causal attention.
absl::StatusOr<NaiveForward> RunNaiveLlama(const engine::ModelFiles& files,
                                           absl::Span<const int32_t> tokens,
                                           const NaiveMask& mask = nullptr);

}  // namespace overture::testing
