// A model's weights as the GPU computes with them: bf16 or, those of the
// layers' products, e4m3; resident, norms in fp32. Immutable after creation,
// but its products share one LinearContext, so one stream uses them at a time.
// Owns everything: the ModelFiles may go once Create has returned.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "base/dtype.h"
#include "base/kv_layout.h"
#include "engine/backend.h"
#include "engine/model_files.h"
#include "kernels/linear/linear.h"

namespace overture::engine {

struct CudaLayerWeights {
  DeviceBuffer<float> attention_norm;  // [hidden]
  DeviceBuffer<float> mlp_norm;        // [hidden]
  // Shapes as FusedRole says.
  std::unique_ptr<kernels::Linear> qkv;
  std::unique_ptr<kernels::Linear> o;
  std::unique_ptr<kernels::Linear> gate_up;
  std::unique_ptr<kernels::Linear> down;
};

class CudaWeights {
 public:
  // On the calling thread's current device, copying on `stream`. Errors as
  // CreateCudaBackend.
  static absl::StatusOr<std::unique_ptr<const CudaWeights>> Create(
      const ModelFiles& files, LinearPrecision linears, const Stream& stream);

  const ModelConfig& config() const { return config_; }
  const KvLayout& kv_layout() const { return kv_layout_; }
  // Of the layers' products; the head's is always kBF16.
  LinearPrecision linears() const { return linears_; }
  const CudaLayerWeights& layer(int32_t index) const { return layers_[index]; }
  const DeviceBuffer<float>& output_norm() const { return output_norm_; }
  const kernels::Linear& lm_head() const { return *lm_head_; }
  const DeviceBuffer<BFloat16>& embedding() const { return embedding_; }
  const DeviceBuffer<double>& inv_freq() const { return inv_freq_; }

  int64_t q_size() const {
    return int64_t{config_.num_q_heads} * config_.head_dim;
  }
  int64_t kv_size() const {
    return int64_t{config_.num_kv_heads} * config_.head_dim;
  }
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }

 private:
  explicit CudaWeights(LinearPrecision linears) : linears_(linears) {}
  absl::Status Load(const ModelFiles& files, const Stream& stream);

  const LinearPrecision linears_;
  ModelConfig config_;
  KvLayout kv_layout_;
  std::unique_ptr<kernels::LinearContext> context_;  // outlives the products
  std::vector<CudaLayerWeights> layers_;
  DeviceBuffer<float> output_norm_;   // [hidden]
  DeviceBuffer<BFloat16> embedding_;  // [vocab, hidden]
  DeviceBuffer<double> inv_freq_;     // [head_dim / 2]
  std::unique_ptr<kernels::Linear> lm_head_;
};

}  // namespace overture::engine
