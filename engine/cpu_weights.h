// A model's weights as the CPU computes with them: packed once, for the
// prefill back end and for decoders.
//
// Immutable after creation, so thread-safe. Owns everything: the ModelFiles may
// go once Create has returned. Memory: every matrix once in the compute dtype,
// the embedding twice if tied (rows to look up, packed for the head).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/kv_layout.h"
#include "engine/backend.h"
#include "engine/model_files.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/precision.h"
#include "kernels/transformer_ops/transformer_ops_cpu.h"

namespace overture::engine {

struct CpuLayerWeights {
  std::vector<float> attention_norm;  // [hidden]
  std::vector<float> mlp_norm;        // [hidden]
  // [(num_q_heads + 2 * num_kv_heads) * head_dim, hidden], rows of Q, K, V.
  std::unique_ptr<kernels::LinearCpu> qkv;
  std::unique_ptr<kernels::LinearCpu> o;  // [hidden, num_q_heads * head_dim]
  std::unique_ptr<kernels::LinearCpu> gate_up;  // [2 * intermediate, hidden]
  std::unique_ptr<kernels::LinearCpu> down;     // [hidden, intermediate]
};

class CpuWeights {
 public:
  // Errors of `files`; INVALID_ARGUMENT for a tensor whose shape does not match
  // the config; RESOURCE_EXHAUSTED when memory runs out.
  static absl::StatusOr<std::unique_ptr<const CpuWeights>> Create(
      const ModelFiles& files, ComputeDType dtype,
      LinearPrecision linears = LinearPrecision::kBF16);

  const ModelConfig& config() const { return config_; }
  const KvLayout& kv_layout() const { return kv_layout_; }
  // kF32 or kBF16: of weights, activations between them, and KV.
  DType dtype() const { return kv_layout_.dtype; }
  // Of the layers' products; the head's is always kBF16.
  LinearPrecision linears() const { return linears_; }
  const kernels::RopeTable& rope() const { return rope_; }
  const CpuLayerWeights& layer(int32_t index) const { return layers_[index]; }
  const std::vector<float>& output_norm() const { return output_norm_; }
  const kernels::LinearCpu& lm_head() const { return *lm_head_; }

  int64_t q_size() const {
    return int64_t{config_.num_q_heads} * config_.head_dim;
  }
  int64_t kv_size() const {
    return int64_t{config_.num_kv_heads} * config_.head_dim;
  }
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }

  // Writes the token's row, [hidden]. REQUIRES 0 <= token < vocab_size.
  void Embed(int32_t token, float* dst) const;

 private:
  CpuWeights() = default;
  absl::Status Load(const ModelFiles& files, ComputeDType dtype);

  ModelConfig config_;
  KvLayout kv_layout_;
  LinearPrecision linears_ = LinearPrecision::kBF16;
  kernels::RopeTable rope_;
  std::vector<CpuLayerWeights> layers_;
  std::vector<float> output_norm_;
  std::unique_ptr<kernels::LinearCpu> lm_head_;
  // One of the two, [vocab, hidden].
  std::vector<float> embedding_f32_;
  std::vector<BFloat16> embedding_bf16_;
};

// kAuto resolved: bf16 where the CPU multiplies it in hardware, else f32.
DType Resolve(ComputeDType dtype);

}  // namespace overture::engine
