// A Llama of two layers whose weights are written by hand, so that its
// attention is known on paper: it answers a token with what followed that
// token's earlier occurrence.
//
// The residual has a one-hot slot per token for the token itself, for the token
// before it, for the output, and one slot that is always 1. Layer 0 attends to
// the position before (RoPE's fast pairs peak at distance 1) and writes that
// token into the second slots; layer 1 attends to where the second slots hold
// the present token (RoPE's slow pairs hardly turn) and writes the token there
// into the third. MLPs are zero. Everything but the one key has less than
// e^-40 of a row's mass, for prompts of up to kMaxInductionLength
// tokens.
//
// Source: Elhage et al., "A mathematical framework for transformer circuits",
// 2021, section on induction heads. Thread-safe: no state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace overture::testing {

inline constexpr int64_t kMaxInductionLength = 2048;
inline constexpr int32_t kInductionVocab = 64;

// A Hugging Face folder: config.json and model.safetensors in f32.
absl::Status WriteInductionModel(const std::string& folder);

struct InductionPrompt {
  std::vector<int32_t> tokens;
  int64_t key_position = 0;     // of the token that the prompt ends with
  int64_t answer_position = 0;  // one behind: what layer 1's last row sees
  int32_t answer = 0;
};
// A start token, filler, and one key with its answer at `key_position`, which
// is within [1, length - 3]; the key once more at the end.
InductionPrompt MakeInductionPrompt(int64_t length, int64_t key_position);

}  // namespace overture::testing
