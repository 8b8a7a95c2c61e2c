// Every weight of a model by role and layer, as views into mapped files: where
// the names of the two formats and the shapes that a config implies are
// written down, once.
//
// A table is plain data that borrows the mappings. Reading is thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/model_config.h"
#include "engine/model_files.h"
#include "engine/tensor_type.h"

namespace overture::engine {

inline constexpr int kNumTensorRoles = static_cast<int>(TensorRole::kDown) + 1;

// "Q": for error messages.
absl::string_view Name(TensorRole role);
// True if there is one such tensor per layer.
constexpr bool IsPerLayer(TensorRole role) {
  return role >= TensorRole::kAttentionNorm;
}
// A vector has one row. All zero if a model of this config has no such tensor.
ModelFiles::Shape ExpectedShape(const ModelConfig& config, TensorRole role);

// "blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight".
std::string GgufName(TensorRole role, int32_t layer);
std::string HuggingFaceName(TensorRole role, int32_t layer);

// One tensor as a file holds it.
struct Weight {
  TensorType type = TensorType::kF32;
  bool is_matrix = false;
  int64_t rows = 0;  // 1 for a vector
  int64_t columns = 0;
  absl::string_view data;
  // Within each head, the rows (elements of a vector) are stored with the
  // halves that RoPE rotates together side by side: 0, D/2, 1, D/2 + 1, ...
  bool interleaved = false;
};

class WeightTable {
 public:
  using NameFunction = std::string (*)(TensorRole, int32_t layer);
  // The tensor of that name, if the files have it.
  using FindFunction =
      std::function<std::optional<Weight>(const std::string& name)>;

  // Looks every tensor of `config` up. INVALID_ARGUMENT naming a tensor that is
  // missing, or whose shape is not the one that the config implies.
  static absl::StatusOr<WeightTable> Build(const ModelConfig& config,
                                           NameFunction name,
                                           const FindFunction& find);

  // The names that Build() took.
  const absl::flat_hash_set<std::string>& names() const { return names_; }

  // ModelFiles' methods of these names.
  absl::StatusOr<ModelFiles::Shape> TensorShape(TensorRole role,
                                                int32_t layer) const;
  absl::Status ReadTensor(TensorRole role, int32_t layer,
                          absl::Span<float> dst) const;
  // T: float, or BFloat16 for ReadRowsBf16.
  template <typename T>
  absl::Status ReadRows(TensorRole role, int32_t layer, int64_t row_begin,
                        absl::Span<T> dst) const;

 private:
  absl::StatusOr<const Weight*> Find(TensorRole role, int32_t layer) const;

  int32_t num_layers_ = 0;
  int64_t head_dim_ = 0;
  std::vector<Weight> weights_;  // [layer][role]; once-only roles in layer 0;
                                 // rows == 0 means absent
  absl::flat_hash_set<std::string> names_;
};

}  // namespace overture::engine
