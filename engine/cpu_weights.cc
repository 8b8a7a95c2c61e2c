#include "engine/cpu_weights.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "engine/rope.h"

namespace overture::engine {
namespace {

// One matrix of a fused product, as it lies in the files.
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

// Stacks the rows of `parts` into one packed product.
absl::StatusOr<std::unique_ptr<kernels::LinearCpu>> Pack(
    const ModelFiles& files, int32_t layer, absl::Span<const Part> parts,
    int64_t columns, absl::Span<const float> bias, DType dtype) {
  int64_t rows = 0;
  for (const Part& part : parts) {
    OVERTURE_RETURN_IF_ERROR(CheckShape(files, part, layer, columns));
    rows += part.rows;
  }
  std::vector<float> weight(rows * columns);
  float* dst = weight.data();
  for (const Part& part : parts) {
    OVERTURE_RETURN_IF_ERROR(files.ReadTensor(
        part.role, layer, absl::MakeSpan(dst, part.rows * columns)));
    dst += part.rows * columns;
  }
  return kernels::LinearCpu::Create(dtype, rows, columns, weight, bias);
}

absl::StatusOr<CpuLayerWeights> LoadLayer(const ModelFiles& files,
                                          int32_t layer, DType dtype) {
  const ModelConfig& config = files.config();
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  const int64_t inter = config.intermediate_size;

  CpuLayerWeights weights;
  OVERTURE_ASSIGN_OR_RETURN(weights.attention_norm,
                            ReadVector(files, TensorRole::kAttentionNorm,
                                       "attention_norm", layer, hidden));
  OVERTURE_ASSIGN_OR_RETURN(
      weights.mlp_norm,
      ReadVector(files, TensorRole::kMlpNorm, "mlp_norm", layer, hidden));

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
  OVERTURE_ASSIGN_OR_RETURN(weights.qkv, Pack(files, layer,
                                              {{TensorRole::kQ, "q", q_size},
                                               {TensorRole::kK, "k", kv_size},
                                               {TensorRole::kV, "v", kv_size}},
                                              hidden, bias, dtype));
  OVERTURE_ASSIGN_OR_RETURN(
      weights.o,
      Pack(files, layer, {{TensorRole::kO, "o", hidden}}, q_size, {}, dtype));
  OVERTURE_ASSIGN_OR_RETURN(
      weights.gate_up,
      Pack(files, layer,
           {{TensorRole::kGate, "gate", inter}, {TensorRole::kUp, "up", inter}},
           hidden, {}, dtype));
  OVERTURE_ASSIGN_OR_RETURN(
      weights.down, Pack(files, layer, {{TensorRole::kDown, "down", hidden}},
                         inter, {}, dtype));
  return weights;
}

}  // namespace

DType Resolve(ComputeDType dtype) {
  switch (dtype) {
    case ComputeDType::kBF16:
      return DType::kBF16;
    case ComputeDType::kF32:
      return DType::kF32;
    case ComputeDType::kAuto:
      break;
  }
  return kernels::CpuHasBf16() ? DType::kBF16 : DType::kF32;
}

absl::StatusOr<std::unique_ptr<const CpuWeights>> CpuWeights::Create(
    const ModelFiles& files, ComputeDType dtype) try {
  std::unique_ptr<CpuWeights> weights(new CpuWeights());
  OVERTURE_RETURN_IF_ERROR(weights->Load(files, dtype));
  return weights;
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError("not enough memory for the weights");
}

absl::Status CpuWeights::Load(const ModelFiles& files, ComputeDType dtype) {
  config_ = files.config();
  OVERTURE_RETURN_IF_ERROR(Validate(config_));
  const DType type = Resolve(dtype);
  kv_layout_ = KvLayout{.num_layers = config_.num_layers,
                        .num_kv_heads = config_.num_kv_heads,
                        .head_dim = config_.head_dim,
                        .dtype = type};
  OVERTURE_RETURN_IF_ERROR(Validate(kv_layout_));
  rope_.inv_freq = RopeInverseFrequencies(config_);

  const int64_t hidden = config_.hidden_size;
  const int64_t vocab = config_.vocab_size;
  {
    std::vector<float> embedding(vocab * hidden);
    OVERTURE_RETURN_IF_ERROR(CheckShape(
        files, {TensorRole::kTokenEmbedding, "token_embedding", vocab}, 0,
        hidden));
    OVERTURE_RETURN_IF_ERROR(files.ReadTensor(TensorRole::kTokenEmbedding, 0,
                                              absl::MakeSpan(embedding)));
    if (config_.tied_embeddings) {
      OVERTURE_ASSIGN_OR_RETURN(
          lm_head_,
          kernels::LinearCpu::Create(type, vocab, hidden, embedding, {}));
    }
    if (type == DType::kF32) {
      embedding_f32_ = std::move(embedding);
    } else {
      embedding_bf16_.resize(embedding.size());
      std::transform(embedding.begin(), embedding.end(),
                     embedding_bf16_.begin(),
                     [](float value) { return BFloat16(value); });
    }
  }
  if (!config_.tied_embeddings) {
    OVERTURE_ASSIGN_OR_RETURN(
        lm_head_, Pack(files, 0, {{TensorRole::kLmHead, "lm_head", vocab}},
                       hidden, {}, type));
  }
  OVERTURE_ASSIGN_OR_RETURN(
      output_norm_,
      ReadVector(files, TensorRole::kOutputNorm, "output_norm", 0, hidden));
  layers_.reserve(config_.num_layers);
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    OVERTURE_ASSIGN_OR_RETURN(CpuLayerWeights weights,
                              LoadLayer(files, layer, type));
    layers_.push_back(std::move(weights));
  }
  return absl::OkStatus();
}

void CpuWeights::Embed(int32_t token, float* dst) const {
  const int64_t hidden = config_.hidden_size;
  if (dtype() == DType::kF32) {
    std::copy_n(embedding_f32_.data() + token * hidden, hidden, dst);
    return;
  }
  const BFloat16* row = embedding_bf16_.data() + token * hidden;
  for (int64_t i = 0; i < hidden; ++i) dst[i] = static_cast<float>(row[i]);
}

}  // namespace overture::engine
