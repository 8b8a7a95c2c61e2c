#include "engine/cpu_weights.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "engine/fused_weights.h"
#include "engine/rope.h"
#include "kernels/linear/linear_fp8_cpu.h"

namespace overture::engine {
namespace {

absl::StatusOr<std::unique_ptr<kernels::LinearCpu>> Pack(
    const ModelFiles& files, FusedRole role, int32_t layer, DType dtype,
    LinearPrecision precision) {
  OVERTURE_ASSIGN_OR_RETURN(const FusedMatrix matrix,
                            FusedMatrix::Find(files, role, layer));
  OVERTURE_ASSIGN_OR_RETURN(const std::vector<float> weight, matrix.Read());
  OVERTURE_ASSIGN_OR_RETURN(const std::vector<float> bias, matrix.ReadBias());
  const auto create = precision == LinearPrecision::kFp8
                          ? kernels::CreateLinearFp8Cpu
                          : kernels::LinearCpu::Create;
  return create(dtype, matrix.rows(), matrix.columns(), weight, bias);
}

absl::StatusOr<CpuLayerWeights> LoadLayer(const ModelFiles& files,
                                          int32_t layer, DType dtype,
                                          LinearPrecision linears) {
  CpuLayerWeights weights;
  OVERTURE_ASSIGN_OR_RETURN(weights.attention_norm,
                            ReadNorm(files, TensorRole::kAttentionNorm, layer));
  OVERTURE_ASSIGN_OR_RETURN(weights.mlp_norm,
                            ReadNorm(files, TensorRole::kMlpNorm, layer));
  OVERTURE_ASSIGN_OR_RETURN(
      weights.qkv, Pack(files, FusedRole::kQkv, layer, dtype, linears));
  OVERTURE_ASSIGN_OR_RETURN(weights.o,
                            Pack(files, FusedRole::kO, layer, dtype, linears));
  OVERTURE_ASSIGN_OR_RETURN(
      weights.gate_up, Pack(files, FusedRole::kGateUp, layer, dtype, linears));
  OVERTURE_ASSIGN_OR_RETURN(
      weights.down, Pack(files, FusedRole::kDown, layer, dtype, linears));
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
    const ModelFiles& files, ComputeDType dtype, LinearPrecision linears) try {
  std::unique_ptr<CpuWeights> weights(new CpuWeights());
  weights->linears_ = linears;
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

  {
    OVERTURE_ASSIGN_OR_RETURN(
        const FusedMatrix embedding,
        FusedMatrix::Find(files, FusedRole::kEmbedding, 0));
    OVERTURE_ASSIGN_OR_RETURN(std::vector<float> values, embedding.Read());
    if (config_.tied_embeddings) {
      OVERTURE_ASSIGN_OR_RETURN(lm_head_, kernels::LinearCpu::Create(
                                              type, embedding.rows(),
                                              embedding.columns(), values, {}));
    }
    if (type == DType::kF32) {
      embedding_f32_ = std::move(values);
    } else {
      embedding_bf16_.resize(values.size());
      std::transform(values.begin(), values.end(), embedding_bf16_.begin(),
                     [](float value) { return BFloat16(value); });
    }
  }
  if (!config_.tied_embeddings) {
    OVERTURE_ASSIGN_OR_RETURN(lm_head_, Pack(files, FusedRole::kLmHead, 0, type,
                                             LinearPrecision::kBF16));
  }
  OVERTURE_ASSIGN_OR_RETURN(output_norm_,
                            ReadNorm(files, TensorRole::kOutputNorm, 0));
  layers_.reserve(config_.num_layers);
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    OVERTURE_ASSIGN_OR_RETURN(CpuLayerWeights weights,
                              LoadLayer(files, layer, type, linears_));
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
