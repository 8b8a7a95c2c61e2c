// Reader of one safetensors file and of the index of a sharded checkpoint.
// Safetensors borrows the bytes it parsed, which outlive it. Immutable, so
// thread-safe.
//
// Parse() checks every size and offset against the bytes that are there; the
// header is read as a stream of events, so a hostile one costs a small multiple
// of its size.
//
// Errors: INVALID_ARGUMENT naming the tensor, the value and the limit;
// UNIMPLEMENTED for an element type we do not read.
//
// Source: huggingface/safetensors README.md, "Format"; like its own reader we
// refuse holes, overlaps, bytes behind the last tensor and headers above
// 100,000,000 bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/tensor_type.h"

namespace overture::engine {

class Safetensors {
 public:
  struct Tensor {
    std::string name;
    TensorType type = TensorType::kF32;  // kF32, kF16 or kBF16
    std::vector<int64_t> shape;          // slowest first; empty = one scalar
    absl::string_view data;              // exactly the tensor's bytes
  };

  static absl::StatusOr<Safetensors> Parse(absl::string_view bytes);

  // In the order of their bytes.
  absl::Span<const Tensor> tensors() const { return tensors_; }
  // Null if there is none.
  const Tensor* FindTensor(absl::string_view name) const;

 private:
  std::vector<Tensor> tensors_;
  absl::flat_hash_map<std::string, int64_t> index_;
};

// `model.safetensors.index.json`: which file holds which tensor. File names
// with a path separator, which could leave the checkpoint's folder, are
// refused.
struct SafetensorsIndex {
  absl::flat_hash_map<std::string, std::string> file_of_tensor;
  std::vector<std::string> files;  // distinct, in name order
};
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view text);

}  // namespace overture::engine
