// The shape of a model's KV cache, carried by every header that describes KV
// bytes (records at rest, chunks on the wire).
//
// Order of one layer's KV for T tokens, everywhere on the host:
//   [2: K, V][num_kv_heads][T][head_dim] of `dtype`, contiguous, little endian.
// K is stored after RoPE, rotated at the key's original position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/dtype.h"

namespace overture {

// Tokens of one record: what the cache stores per layer in one value.
inline constexpr int64_t kTokensPerBlock = 256;

struct KvLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kF32;

  friend bool operator==(const KvLayout&, const KvLayout&) = default;

  // Bytes of K (or of V) for `num_tokens` tokens of one KV head, one layer.
  int64_t HeadBytes(int64_t num_tokens) const {
    return num_tokens * head_dim * SizeOf(dtype);
  }
  // Bytes of K and V for `num_tokens` tokens of one layer.
  int64_t LayerBytes(int64_t num_tokens) const {
    return 2 * num_kv_heads * HeadBytes(num_tokens);
  }
  // Bytes of K and V over all layers.
  int64_t TotalBytes(int64_t num_tokens) const {
    return num_layers * LayerBytes(num_tokens);
  }
};

// INVALID_ARGUMENT naming the field, value and limit, unless every size is
// positive and at most 4,096 layers, 1,024 KV heads and head dim 1,024, which
// keeps every byte count of 2^31 tokens inside int64_t.
absl::Status Validate(const KvLayout& layout);

// "30 layers x 3 KV heads x 64, bf16": for logs and error messages.
std::string ToString(const KvLayout& layout);

// One layer's K and V for rows [0, num_rows) of every KV head. Head h of K is
// k + h * head_stride_bytes, row r of it HeadBytes(r) further. A view: the
// owner outlives it.
struct LayerKvView {
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  int64_t num_rows = 0;
  int64_t head_stride_bytes = 0;
};

struct MutableLayerKvView {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int64_t num_rows = 0;
  int64_t head_stride_bytes = 0;

  operator LayerKvView() const { return {k, v, num_rows, head_stride_bytes}; }
};

// Copies rows [row_begin, row_begin + num_rows) of `kv` to `dst`, LayerBytes(
// num_rows) bytes in the order above; ScatterRows is the inverse.
void GatherRows(const KvLayout& layout, const LayerKvView& kv,
                int64_t row_begin, int64_t num_rows, std::byte* dst);
void ScatterRows(const KvLayout& layout, const std::byte* src,
                 int64_t row_begin, int64_t num_rows,
                 const MutableLayerKvView& kv);

}  // namespace overture
