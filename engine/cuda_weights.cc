#include "engine/cuda_weights.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/cuda/event.h"
#include "base/cuda/status.h"
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

// Takes matrices from the files to the device: the cores read into one half of
// a pinned buffer while the other is copied. Outlives the copies.
class MatrixUploader {
 public:
  static absl::StatusOr<MatrixUploader> Create(const ModelConfig& config,
                                               const Stream& stream) {
    // At most 64 MiB, which are reads large enough for all cores; the two hold
    // the largest matrix of a small model. At least a row of every matrix.
    constexpr int64_t kMostElements = int64_t{1} << 25;
    const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
    const int64_t largest =
        config.hidden_size *
        std::max({config.vocab_size, 2 * config.intermediate_size, q_size});
    const int64_t elements =
        std::max({std::min(kMostElements, largest / 2), config.hidden_size,
                  config.intermediate_size, q_size});
    MatrixUploader uploader(stream);
    for (Half& half : uploader.halves_) {
      OVERTURE_ASSIGN_OR_RETURN(half.rows,
                                PinnedBuffer<BFloat16>::Allocate(elements));
      OVERTURE_ASSIGN_OR_RETURN(half.copied, Event::Create());
    }
    return uploader;
  }

  // Copies in the stream's order.
  absl::StatusOr<DeviceBuffer<BFloat16>> Upload(const FusedMatrix& matrix) {
    const int64_t columns = matrix.columns();
    OVERTURE_ASSIGN_OR_RETURN(
        auto device, DeviceBuffer<BFloat16>::Allocate(matrix.rows() * columns));
    const int64_t most = halves_[0].rows.size() / columns;
    for (int64_t row = 0; row < matrix.rows(); row += most) {
      Half& half = halves_[next_];
      next_ = 1 - next_;
      OVERTURE_RETURN_IF_ERROR(half.copied->Synchronize());
      const int64_t count = std::min(most, matrix.rows() - row) * columns;
      OVERTURE_RETURN_IF_ERROR(
          matrix.ReadRows(row, half.rows.span().subspan(0, count)));
      OVERTURE_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(
          device.data() + row * columns, half.rows.data(),
          count * sizeof(BFloat16), cudaMemcpyHostToDevice, stream_->get()));
      OVERTURE_RETURN_IF_ERROR(half.copied->Record(*stream_));
    }
    return device;
  }

 private:
  struct Half {
    PinnedBuffer<BFloat16> rows;
    std::optional<Event> copied;
  };

  explicit MatrixUploader(const Stream& stream) : stream_(&stream) {}

  const Stream* stream_;
  std::array<Half, 2> halves_;
  int next_ = 0;
};

// What every matrix is loaded with.
struct Loader {
  const ModelFiles& files;
  kernels::LinearContext* context;
  const Stream& stream;
  MatrixUploader uploader;
};

absl::StatusOr<DeviceBuffer<float>> UploadNorm(const Loader& loader,
                                               TensorRole role, int32_t layer) {
  OVERTURE_ASSIGN_OR_RETURN(const std::vector<float> norm,
                            ReadNorm(loader.files, role, layer));
  return Upload(norm, loader.stream);
}

absl::StatusOr<std::unique_ptr<kernels::Linear>> UploadLinear(
    Loader& loader, FusedRole role, int32_t layer, LinearPrecision precision) {
  OVERTURE_ASSIGN_OR_RETURN(const FusedMatrix matrix,
                            FusedMatrix::Find(loader.files, role, layer));
  OVERTURE_ASSIGN_OR_RETURN(const std::vector<float> bias, matrix.ReadBias());
  OVERTURE_ASSIGN_OR_RETURN(auto weight, loader.uploader.Upload(matrix));
  return kernels::Linear::Create(loader.context, precision, matrix.rows(),
                                 matrix.columns(), std::move(weight), bias,
                                 loader.stream);
}

absl::StatusOr<CudaLayerWeights> LoadLayer(Loader& loader, int32_t layer,
                                           LinearPrecision linears) {
  CudaLayerWeights weights;
  OVERTURE_ASSIGN_OR_RETURN(
      weights.attention_norm,
      UploadNorm(loader, TensorRole::kAttentionNorm, layer));
  OVERTURE_ASSIGN_OR_RETURN(weights.mlp_norm,
                            UploadNorm(loader, TensorRole::kMlpNorm, layer));
  const std::pair<FusedRole, std::unique_ptr<kernels::Linear>*> products[] = {
      {FusedRole::kQkv, &weights.qkv},
      {FusedRole::kO, &weights.o},
      {FusedRole::kGateUp, &weights.gate_up},
      {FusedRole::kDown, &weights.down}};
  for (const auto& [role, product] : products) {
    OVERTURE_ASSIGN_OR_RETURN(*product,
                              UploadLinear(loader, role, layer, linears));
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
  OVERTURE_ASSIGN_OR_RETURN(MatrixUploader uploader,
                            MatrixUploader::Create(config_, stream));
  Loader loader{files, context_.get(), stream, std::move(uploader)};
  const auto wait = absl::MakeCleanup([&] {
    stream.Synchronize().IgnoreError();  // before the uploader goes
  });
  OVERTURE_ASSIGN_OR_RETURN(const FusedMatrix embedding,
                            FusedMatrix::Find(files, FusedRole::kEmbedding, 0));
  OVERTURE_ASSIGN_OR_RETURN(embedding_, loader.uploader.Upload(embedding));
  OVERTURE_ASSIGN_OR_RETURN(lm_head_, UploadLinear(loader, FusedRole::kLmHead,
                                                   0, LinearPrecision::kBF16));
  OVERTURE_ASSIGN_OR_RETURN(output_norm_,
                            UploadNorm(loader, TensorRole::kOutputNorm, 0));
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    OVERTURE_ASSIGN_OR_RETURN(CudaLayerWeights weights,
                              LoadLayer(loader, layer, linears_));
    layers_.push_back(std::move(weights));
  }
  return absl::OkStatus();
}

}  // namespace overture::engine
