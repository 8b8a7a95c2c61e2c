#include "engine/fused_weights.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status_macros.h"

namespace overture::engine {
namespace {

// One tensor of a fused one, as it lies in the files.
struct Part {
  TensorRole role;
  absl::string_view name;
  int64_t rows;
};

absl::Status CheckShape(const ModelFiles& files, const Part& part,
                        int32_t layer, int64_t columns) {
  OVERTURE_ASSIGN_OR_RETURN(const ModelFiles::Shape shape,
                            files.TensorShape(part.role, layer));
  if (shape.rows == part.rows && shape.columns == columns) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", part.name, " of layer ", layer, " is [",
                   shape.rows, ", ", shape.columns, "], the config asks for [",
                   part.rows, ", ", columns, "]"));
}

absl::StatusOr<std::vector<float>> ReadVector(const ModelFiles& files,
                                              TensorRole role,
                                              absl::string_view name,
                                              int32_t layer, int64_t size) {
  OVERTURE_RETURN_IF_ERROR(CheckShape(files, {role, name, 1}, layer, size));
  std::vector<float> values(size);
  OVERTURE_RETURN_IF_ERROR(
      files.ReadTensor(role, layer, absl::MakeSpan(values)));
  return values;
}

// Rows of one call: enough elements to pay for it, about 4 MB of fp32.
constexpr int64_t kElementsPerRead = int64_t{1} << 20;

// Reads one matrix, its rows spread over the cores: with the rounding of
// Linear::Create an 8B model loads in 31 s instead of 40 on 16 of them.
absl::Status ReadMatrix(const ModelFiles& files, const Part& part,
                        int32_t layer, int64_t columns, float* dst) {
  const int64_t rows_per_read =
      std::max<int64_t>(1, kElementsPerRead / columns);
  const int64_t num_reads = (part.rows + rows_per_read - 1) / rows_per_read;
  std::vector<absl::Status> statuses(num_reads);
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < num_reads; ++i) {
    const int64_t begin = i * rows_per_read;
    const int64_t rows = std::min(rows_per_read, part.rows - begin);
    try {
      statuses[i] =
          files.ReadRows(part.role, layer, begin,
                         absl::MakeSpan(dst + begin * columns, rows * columns));
    } catch (const std::exception& e) {
      // Nothing may leave the parallel region.
      statuses[i] = absl::ResourceExhaustedError(e.what());
    }
  }
  for (const absl::Status& status : statuses) {
    OVERTURE_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

// Stacks the rows of `parts`.
absl::StatusOr<FusedMatrix> Stack(const ModelFiles& files, int32_t layer,
                                  absl::Span<const Part> parts,
                                  int64_t columns) {
  FusedMatrix matrix{.columns = columns};
  for (const Part& part : parts) {
    OVERTURE_RETURN_IF_ERROR(CheckShape(files, part, layer, columns));
    matrix.rows += part.rows;
  }
  matrix.weight.resize(matrix.rows * columns);
  float* dst = matrix.weight.data();
  for (const Part& part : parts) {
    OVERTURE_RETURN_IF_ERROR(ReadMatrix(files, part, layer, columns, dst));
    dst += part.rows * columns;
  }
  return matrix;
}

}  // namespace

absl::StatusOr<FusedMatrix> ReadFused(const ModelFiles& files, FusedRole role,
                                      int32_t layer) {
  const ModelConfig& config = files.config();
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  const int64_t inter = config.intermediate_size;
  const Part embedding = {TensorRole::kTokenEmbedding, "token_embedding",
                          config.vocab_size};
  switch (role) {
    case FusedRole::kEmbedding:
      return Stack(files, 0, {embedding}, hidden);
    case FusedRole::kLmHead:
      if (config.tied_embeddings) return Stack(files, 0, {embedding}, hidden);
      return Stack(files, 0,
                   {{TensorRole::kLmHead, "lm_head", config.vocab_size}},
                   hidden);
    case FusedRole::kO:
      return Stack(files, layer, {{TensorRole::kO, "o", hidden}}, q_size);
    case FusedRole::kGateUp:
      return Stack(
          files, layer,
          {{TensorRole::kGate, "gate", inter}, {TensorRole::kUp, "up", inter}},
          hidden);
    case FusedRole::kDown:
      return Stack(files, layer, {{TensorRole::kDown, "down", hidden}}, inter);
    case FusedRole::kQkv:
      break;
  }
  std::vector<float> bias;
  if (config.qkv_bias) {
    const Part parts[] = {{TensorRole::kQBias, "q_bias", q_size},
                          {TensorRole::kKBias, "k_bias", kv_size},
                          {TensorRole::kVBias, "v_bias", kv_size}};
    for (const Part& part : parts) {
      OVERTURE_ASSIGN_OR_RETURN(
          const std::vector<float> values,
          ReadVector(files, part.role, part.name, layer, part.rows));
      bias.insert(bias.end(), values.begin(), values.end());
    }
  }
  OVERTURE_ASSIGN_OR_RETURN(FusedMatrix matrix,
                            Stack(files, layer,
                                  {{TensorRole::kQ, "q", q_size},
                                   {TensorRole::kK, "k", kv_size},
                                   {TensorRole::kV, "v", kv_size}},
                                  hidden));
  matrix.bias = std::move(bias);
  return matrix;
}

absl::StatusOr<std::vector<float>> ReadNorm(const ModelFiles& files,
                                            TensorRole role, int32_t layer) {
  const absl::string_view name = role == TensorRole::kAttentionNorm
                                     ? "attention_norm"
                                 : role == TensorRole::kMlpNorm ? "mlp_norm"
                                                                : "output_norm";
  return ReadVector(files, role, name, layer, files.config().hidden_size);
}

}  // namespace overture::engine
