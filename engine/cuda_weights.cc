#include "engine/cuda_weights.h"

#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "engine/fused_weights.h"
#include "engine/rope.h"
#include "kernels/selectors/vertical_slash_gpu.h"

namespace overture::engine {
namespace {

// What the kernels take, said in the model's words.
absl::Status CheckShapes(const ModelConfig& config, LinearPrecision linears) {
  if (config.head_dim != 64 && config.head_dim != 96 &&
      config.head_dim != 128) {
    return absl::UnimplementedError(
        absl::StrCat("the GPU back end takes head_dim 64, 96 or 128, this "
                     "model's is ",
                     config.head_dim));
  }
  if (config.num_q_heads > kernels::kMaxSelectorHeads) {
    return absl::UnimplementedError(absl::StrCat(
        "the GPU back end takes at most ", kernels::kMaxSelectorHeads,
        " query heads, this model has ", config.num_q_heads));
  }
  // The largest are those of LaunchRmsNorm and LaunchSwiGlu.
  const int64_t unit = linears == LinearPrecision::kFp8 ? 16 : 8;
  const struct {
    const char* name;
    int64_t value;
    int64_t unit;
    int64_t max;
  } sizes[] = {{"hidden_size", config.hidden_size, unit, 32768},
               {"intermediate_size", config.intermediate_size, unit, 65536},
               {"vocab_size", config.vocab_size, 8, int64_t{1} << 31}};
  for (const auto& size : sizes) {
    if (size.value % size.unit == 0 && size.value <= size.max) continue;
    return absl::UnimplementedError(absl::StrCat(
        "the GPU back end takes multiples of ", size.unit, " up to ", size.max,
        ", this model's ", size.name, " is ", size.value));
  }
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<DeviceBuffer<T>> Upload(const std::vector<T>& values,
                                       const Stream& stream) {
  OVERTURE_ASSIGN_OR_RETURN(
      DeviceBuffer<T> buffer,
      DeviceBuffer<T>::Allocate(static_cast<int64_t>(values.size())));
  OVERTURE_RETURN_IF_ERROR(
      buffer.CopyFromHost(absl::MakeConstSpan(values), stream));
  OVERTURE_RETURN_IF_ERROR(stream.Synchronize());
  return buffer;
}

absl::StatusOr<DeviceBuffer<float>> UploadNorm(const ModelFiles& files,
                                               TensorRole role, int32_t layer,
                                               const Stream& stream) {
  OVERTURE_ASSIGN_OR_RETURN(const std::vector<float> norm,
                            ReadNorm(files, role, layer));
  return Upload(norm, stream);
}

std::vector<BFloat16> Rounded(const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<BFloat16> rounded(count);
#pragma omp parallel for
  for (int64_t i = 0; i < count; ++i) rounded[i] = BFloat16(values[i]);
  return rounded;
}

absl::StatusOr<std::unique_ptr<kernels::Linear>> UploadLinear(
    const ModelFiles& files, FusedRole role, int32_t layer,
    LinearPrecision precision, kernels::LinearContext* context,
    const Stream& stream) {
  OVERTURE_ASSIGN_OR_RETURN(const FusedMatrix matrix,
                            ReadFused(files, role, layer));
  return kernels::Linear::Create(context, precision, matrix.rows,
                                 matrix.columns, Rounded(matrix.weight),
                                 matrix.bias, stream);
}

absl::StatusOr<CudaLayerWeights> LoadLayer(const ModelFiles& files,
                                           int32_t layer,
                                           LinearPrecision linears,
                                           kernels::LinearContext* context,
                                           const Stream& stream) {
  CudaLayerWeights weights;
  OVERTURE_ASSIGN_OR_RETURN(
      weights.attention_norm,
      UploadNorm(files, TensorRole::kAttentionNorm, layer, stream));
  OVERTURE_ASSIGN_OR_RETURN(
      weights.mlp_norm, UploadNorm(files, TensorRole::kMlpNorm, layer, stream));
  const std::pair<FusedRole, std::unique_ptr<kernels::Linear>*> products[] = {
      {FusedRole::kQkv, &weights.qkv},
      {FusedRole::kO, &weights.o},
      {FusedRole::kGateUp, &weights.gate_up},
      {FusedRole::kDown, &weights.down}};
  for (const auto& [role, product] : products) {
    OVERTURE_ASSIGN_OR_RETURN(
        *product, UploadLinear(files, role, layer, linears, context, stream));
  }
  return weights;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const CudaWeights>> CudaWeights::Create(
    const ModelFiles& files, LinearPrecision linears,
    const Stream& stream) try {
  std::unique_ptr<CudaWeights> weights(new CudaWeights(linears));
  OVERTURE_RETURN_IF_ERROR(weights->Load(files, stream));
  return weights;
} catch (const std::bad_alloc&) {
  return absl::ResourceExhaustedError("not enough memory to read the weights");
}

absl::Status CudaWeights::Load(const ModelFiles& files, const Stream& stream) {
  config_ = files.config();
  OVERTURE_RETURN_IF_ERROR(Validate(config_));
  OVERTURE_RETURN_IF_ERROR(CheckShapes(config_, linears_));
  kv_layout_ = KvLayout{.num_layers = config_.num_layers,
                        .num_kv_heads = config_.num_kv_heads,
                        .head_dim = config_.head_dim,
                        .dtype = DType::kBF16};
  OVERTURE_RETURN_IF_ERROR(Validate(kv_layout_));
  OVERTURE_ASSIGN_OR_RETURN(context_, kernels::LinearContext::Create());
  OVERTURE_ASSIGN_OR_RETURN(inv_freq_,
                            Upload(RopeInverseFrequencies(config_), stream));
  {
    OVERTURE_ASSIGN_OR_RETURN(const FusedMatrix embedding,
                              ReadFused(files, FusedRole::kEmbedding, 0));
    OVERTURE_ASSIGN_OR_RETURN(embedding_,
                              Upload(Rounded(embedding.weight), stream));
  }
  OVERTURE_ASSIGN_OR_RETURN(
      lm_head_, UploadLinear(files, FusedRole::kLmHead, 0,
                             LinearPrecision::kBF16, context_.get(), stream));
  OVERTURE_ASSIGN_OR_RETURN(
      output_norm_, UploadNorm(files, TensorRole::kOutputNorm, 0, stream));
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    OVERTURE_ASSIGN_OR_RETURN(
        CudaLayerWeights weights,
        LoadLayer(files, layer, linears_, context_.get(), stream));
    layers_.push_back(std::move(weights));
  }
  return absl::OkStatus();
}

}  // namespace overture::engine
