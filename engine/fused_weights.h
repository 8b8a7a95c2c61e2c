// The matrices of the layer loop as its products take them, read from the
// files: Q, K and V stacked into one, gate and up into another. What every back
// end loads, whatever it then packs. Thread-safe.
//
// Errors: those of `files`; INVALID_ARGUMENT naming a tensor whose shape does
// not match the config. May throw std::bad_alloc.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model_files.h"

namespace overture::engine {

enum class FusedRole : uint8_t {
  kEmbedding,  // [vocab, hidden]
  kLmHead,     // [vocab, hidden]; the embedding if tied
  kQkv,     // [(num_q_heads + 2 * num_kv_heads) * head_dim, hidden]; per layer
  kO,       // [hidden, num_q_heads * head_dim]
  kGateUp,  // [2 * intermediate, hidden]
  kDown,    // [hidden, intermediate]
};

struct FusedMatrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<float> weight;  // [rows, columns]
  std::vector<float> bias;    // [rows], or empty
};

// `layer` is ignored for the roles without one.
absl::StatusOr<FusedMatrix> ReadFused(const ModelFiles& files, FusedRole role,
                                      int32_t layer);

// One of the norms, [hidden].
absl::StatusOr<std::vector<float>> ReadNorm(const ModelFiles& files,
                                            TensorRole role, int32_t layer);

}  // namespace overture::engine
