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
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
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

// `layer` is ignored for the roles without one.
class FusedMatrix {
 public:
  // Looks its tensors up. `files` outlives the result.
  static absl::StatusOr<FusedMatrix> Find(const ModelFiles& files,
                                          FusedRole role, int32_t layer);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

  // Rows [row_begin, row_begin + dst.size() / columns()), spread over the
  // cores. T: float or BFloat16. REQUIRES whole rows within the matrix.
  template <typename T>
  absl::Status ReadRows(int64_t row_begin, absl::Span<T> dst) const;

  // All of it.
  absl::StatusOr<std::vector<float>> Read() const;
  // [rows], or empty.
  absl::StatusOr<std::vector<float>> ReadBias() const;

 private:
  // One tensor of it, as it lies in the files.
  struct Part {
    TensorRole role;
    absl::string_view name;
    int64_t rows;
  };

  FusedMatrix(const ModelFiles& files, int32_t layer)
      : files_(&files), layer_(layer) {}

  const ModelFiles* files_;
  int32_t layer_;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  std::vector<Part> parts_;
  std::vector<Part> biases_;  // of the parts, or empty
};

// One of the norms, [hidden].
absl::StatusOr<std::vector<float>> ReadNorm(const ModelFiles& files,
                                            TensorRole role, int32_t layer);

}  // namespace overture::engine
