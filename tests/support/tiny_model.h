// A random Llama-family model, small enough for a unit test, in both forms that
// we load: the same weights as a Hugging Face folder and as a GGUF file. Equal
// options give equal bytes on every machine.
//
// With vocab_size >= 257 both forms carry a byte-level tokenizer without
// merges: ids 0 to 255 are the bytes in GPT-2's order, 256 is <|endoftext|>,
// the model's EOS, the rest are special tokens <|extra_0|>, ...
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "engine/model_config.h"
#include "engine/model_files.h"

namespace overture::testing {

struct TinyModelOptions {
  std::string architecture = "llama";  // or "qwen2", which has QKV biases
  int64_t vocab_size = 320;
  int64_t hidden_size = 64;
  int64_t intermediate_size = 128;
  int32_t num_layers = 2;
  int32_t num_q_heads = 4;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 16;
  int64_t max_positions = 65536;
  double rms_norm_eps = 1e-5;
  double rope_theta = 1e4;
  engine::RopeScaling rope_scaling;
  bool tied_embeddings = true;
  DType dtype = DType::kF32;  // of every weight in the folder and of the
                              // matrices in the GGUF file
  uint32_t seed = 1;
  // Gain of the Q and K matrices over 1 / sqrt(hidden_size): at 1 attention is
  // almost uniform, and a wrong mask or position changes little; at 2 a few
  // keys dominate a row.
  float qk_gain = 2.0f;
};

class TinyModel {
 public:
  explicit TinyModel(const TinyModelOptions& options);

  // What LoadModelFiles() should find, apart from the name.
  const engine::ModelConfig& config() const { return config_; }

  // The weights as ReadTensor() should return them: already rounded to
  // options.dtype, Q and K rows in Hugging Face's order. Empty if the model has
  // no such tensor.
  absl::Span<const float> Weight(engine::TensorRole role, int32_t layer) const;

  // Creates `folder` with config.json, tokenizer.json and one
  // model.safetensors, or `num_shards` files and an index.
  absl::Status WriteHuggingFace(const std::string& folder,
                                int num_shards = 1) const;
  absl::Status WriteGguf(const std::string& path) const;

 private:
  TinyModelOptions options_;
  engine::ModelConfig config_;
  std::map<std::pair<engine::TensorRole, int32_t>, std::vector<float>> weights_;
};

}  // namespace overture::testing
