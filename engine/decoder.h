// Generates tokens over KV that was computed elsewhere: the reference for
// decode workers. KV heads may hold different numbers of rows (views), so the
// position of the next token is a number of its own (docs/design.md, D5):
// logical_length() counts positions, rows(layer, head) counts rows held.
// Thread-compatible. CPU only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/kv_layout.h"
#include "engine/backend.h"
#include "engine/model_files.h"

namespace overture::engine {

// The weights a decoder needs, packed once, shared by many decoders.
class DecoderModel {
 public:
  static absl::StatusOr<std::shared_ptr<const DecoderModel>> Create(
      const ModelFiles& files, ComputeDType dtype);
  virtual ~DecoderModel() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const KvLayout& kv_layout() const = 0;
};

class Decoder {
 public:
  // The model is shared by all decoders that run it.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(
      std::shared_ptr<const DecoderModel> model, int64_t logical_length);
  virtual ~Decoder() = default;

  // Appends rows to one KV head, [num_rows][head_dim] of `dtype` (converted to
  // the model's), in ascending order of position. INVALID_ARGUMENT for a layer,
  // head or size that does not fit.
  virtual absl::Status AppendRows(int32_t layer, int32_t kv_head, DType dtype,
                                  absl::Span<const std::byte> k,
                                  absl::Span<const std::byte> v) = 0;

  // Attends to what is held plus the token itself, at position
  // logical_length(), which then grows by one. Returns [vocab] logits, valid
  // until the next call. OUT_OF_RANGE beyond the model's positions or for an id
  // outside the vocabulary; FAILED_PRECONDITION if a head holds no row while
  // logical_length() > 0.
  virtual absl::StatusOr<absl::Span<const float>> Step(int32_t token) = 0;

  virtual int64_t logical_length() const = 0;
  virtual int64_t rows(int32_t layer, int32_t kv_head) const = 0;
};

// Index of the largest logit, the lowest index on a tie.
int32_t Argmax(absl::Span<const float> logits);
// Natural log of softmax(logits)[token].
float LogProbability(absl::Span<const float> logits, int32_t token);

}  // namespace overture::engine
