// A model on disk, either format behind one face: its config, its tensors by
// role, its tokenizer's data and its digest. Files are memory-mapped; nothing
// is dequantised until asked for.
//
// Thread-safe once loaded. Tensor data is borrowed from the mapping, which
// lives as long as the ModelFiles.
//
// Errors: NOT_FOUND (no such path), INVALID_ARGUMENT (malformed file: names
// file, tensor or key, and reason), UNIMPLEMENTED (architecture, tensor type or
// RoPE scaling that is not supported: names it and the supported ones). A
// hostile file can cost no allocation larger than a small multiple of its size.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "engine/model_config.h"

namespace overture::engine {

enum class TensorRole : uint8_t {
  kTokenEmbedding,  // [vocab, hidden]
  kOutputNorm,      // [hidden]
  kLmHead,          // [vocab, hidden]; absent when embeddings are tied
  kAttentionNorm,   // per layer from here on; [hidden]
  kQ,               // [num_q_heads * head_dim, hidden], see RoPE note below
  kK,               // [num_kv_heads * head_dim, hidden]
  kV,
  kQBias,  // [num_q_heads * head_dim], only with qkv_bias
  kKBias,
  kVBias,
  kO,        // [hidden, num_q_heads * head_dim]
  kMlpNorm,  // [hidden]
  kGate,     // [intermediate, hidden]
  kUp,
  kDown,  // [hidden, intermediate]
};

class ModelFiles {
 public:
  virtual ~ModelFiles() = default;

  virtual const ModelConfig& config() const = 0;

  // SHA-256 over what decides the model's output: of a GGUF file its bytes; of
  // a folder the config's fields and the digest of every weight file, in name
  // order. A file's digest is that of the digests of its pieces of 64 MiB, so
  // that all cores can work on one file, each at 1 to 2 GB/s with SHA
  // instructions. The weights revision in a cache root. Computed by the loader.
  virtual const Sha256Digest& weights_digest() const = 0;

  // Writes the tensor, dequantised, as fp32, row-major; `dst` has exactly its
  // element count. Q and K rows come in the order that rotates dimension i with
  // i + head_dim / 2 (Hugging Face's); GGUF files of the llama architecture
  // store them interleaved, and this undoes that. `layer` is ignored for the
  // roles without one. NOT_FOUND if the model has no such tensor.
  virtual absl::Status ReadTensor(TensorRole role, int32_t layer,
                                  absl::Span<float> dst) const = 0;

  // Rows [row_begin, row_begin + dst.size() / row_size) of the same.
  virtual absl::Status ReadRows(TensorRole role, int32_t layer,
                                int64_t row_begin,
                                absl::Span<float> dst) const = 0;

  // The same rounded to bf16: a plain copy of what is bf16 in the files.
  virtual absl::Status ReadRowsBf16(TensorRole role, int32_t layer,
                                    int64_t row_begin,
                                    absl::Span<BFloat16> dst) const;

  // [rows, columns]; a vector has one row. NOT_FOUND as above.
  struct Shape {
    int64_t rows = 0;
    int64_t columns = 0;
  };
  virtual absl::StatusOr<Shape> TensorShape(TensorRole role,
                                            int32_t layer) const = 0;
};

// `path` is a .gguf file or a Hugging Face folder (config.json, *.safetensors
// with or without an index).
absl::StatusOr<std::unique_ptr<ModelFiles>> LoadModelFiles(
    absl::string_view path);

}  // namespace overture::engine
