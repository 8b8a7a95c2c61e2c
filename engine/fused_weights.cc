#include "engine/fused_weights.h"

#include <algorithm>
#include <exception>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/status_macros.h"

namespace overture::engine {
namespace {

absl::Status CheckShape(const ModelFiles& files, TensorRole role,
                        absl::string_view name, int32_t layer, int64_t rows,
                        int64_t columns) {
  OVERTURE_ASSIGN_OR_RETURN(const ModelFiles::Shape shape,
                            files.TensorShape(role, layer));
  if (shape.rows == rows && shape.columns == columns) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor ", name, " of layer ", layer, " is [", shape.rows, ", ",
      shape.columns, "], the config asks for [", rows, ", ", columns, "]"));
}

absl::StatusOr<std::vector<float>> ReadVector(const ModelFiles& files,
                                              TensorRole role,
                                              absl::string_view name,
                                              int32_t layer, int64_t size) {
  OVERTURE_RETURN_IF_ERROR(CheckShape(files, role, name, layer, 1, size));
  std::vector<float> values(size);
  OVERTURE_RETURN_IF_ERROR(
      files.ReadTensor(role, layer, absl::MakeSpan(values)));
  return values;
}

// Rows of one call: enough elements to pay for it, 2 or 4 MB.
constexpr int64_t kElementsPerRead = int64_t{1} << 20;

}  // namespace

absl::StatusOr<FusedMatrix> FusedMatrix::Find(const ModelFiles& files,
                                              FusedRole role, int32_t layer) {
  const ModelConfig& config = files.config();
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  const int64_t inter = config.intermediate_size;
  FusedMatrix matrix(files, layer);
  matrix.columns_ = role == FusedRole::kO      ? q_size
                    : role == FusedRole::kDown ? inter
                                               : hidden;
  switch (role) {
    case FusedRole::kLmHead:
      if (!config.tied_embeddings) {
        matrix.parts_ = {{TensorRole::kLmHead, "lm_head", config.vocab_size}};
        break;
      }
      [[fallthrough]];
    case FusedRole::kEmbedding:
      matrix.parts_ = {
          {TensorRole::kTokenEmbedding, "token_embedding", config.vocab_size}};
      break;
    case FusedRole::kO:
      matrix.parts_ = {{TensorRole::kO, "o", hidden}};
      break;
    case FusedRole::kGateUp:
      matrix.parts_ = {{TensorRole::kGate, "gate", inter},
                       {TensorRole::kUp, "up", inter}};
      break;
    case FusedRole::kDown:
      matrix.parts_ = {{TensorRole::kDown, "down", hidden}};
      break;
    case FusedRole::kQkv:
      matrix.parts_ = {{TensorRole::kQ, "q", q_size},
                       {TensorRole::kK, "k", kv_size},
                       {TensorRole::kV, "v", kv_size}};
      if (config.qkv_bias) {
        matrix.biases_ = {{TensorRole::kQBias, "q_bias", q_size},
                          {TensorRole::kKBias, "k_bias", kv_size},
                          {TensorRole::kVBias, "v_bias", kv_size}};
      }
      break;
  }
  for (const Part& part : matrix.parts_) {
    OVERTURE_RETURN_IF_ERROR(CheckShape(files, part.role, part.name, layer,
                                        part.rows, matrix.columns_));
    matrix.rows_ += part.rows;
  }
  return matrix;
}

template <typename T>
absl::Status FusedMatrix::ReadRows(int64_t row_begin, absl::Span<T> dst) const {
  // Pieces of one part each.
  struct Piece {
    TensorRole role;
    int64_t row_begin;  // of the part
    absl::Span<T> dst;
  };
  std::vector<Piece> pieces;
  const int64_t most = std::max<int64_t>(1, kElementsPerRead / columns_);
  const int64_t row_end =
      row_begin + static_cast<int64_t>(dst.size()) / columns_;
  int64_t part_begin = 0;
  for (const Part& part : parts_) {
    const int64_t end = std::min(row_end, part_begin + part.rows);
    for (int64_t row = std::max(row_begin, part_begin); row < end;
         row += most) {
      const int64_t rows = std::min(most, end - row);
      pieces.push_back(
          {part.role, row - part_begin,
           dst.subspan((row - row_begin) * columns_, rows * columns_)});
    }
    part_begin += part.rows;
  }
  std::vector<absl::Status> statuses(pieces.size());
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    try {
      if constexpr (std::is_same_v<T, float>) {
        statuses[i] =
            files_->ReadRows(piece.role, layer_, piece.row_begin, piece.dst);
      } else {
        statuses[i] = files_->ReadRowsBf16(piece.role, layer_, piece.row_begin,
                                           piece.dst);
      }
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

template absl::Status FusedMatrix::ReadRows(int64_t, absl::Span<float>) const;
template absl::Status FusedMatrix::ReadRows(int64_t,
                                            absl::Span<BFloat16>) const;

absl::StatusOr<std::vector<float>> FusedMatrix::Read() const {
  std::vector<float> values(rows_ * columns_);
  OVERTURE_RETURN_IF_ERROR(ReadRows(0, absl::MakeSpan(values)));
  return values;
}

absl::StatusOr<std::vector<float>> FusedMatrix::ReadBias() const {
  std::vector<float> bias;
  for (const Part& part : biases_) {
    OVERTURE_ASSIGN_OR_RETURN(
        const std::vector<float> values,
        ReadVector(*files_, part.role, part.name, layer_, part.rows));
    bias.insert(bias.end(), values.begin(), values.end());
  }
  return bias;
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
