#include "kernels/fp8_attention/quantized_kv.h"

#include "absl/strings/str_cat.h"

namespace overture::kernels {
namespace {

constexpr int64_t kAlignment = 256;

int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

int64_t Fp8KvBytes(int32_t num_kv_heads, int32_t head_dim, int64_t capacity) {
  const int64_t tiles =
      num_kv_heads * ((capacity + fp8::kTileKeys - 1) / fp8::kTileKeys);
  return Aligned(tiles * fp8::KeyTileBytes(head_dim)) +
         Aligned(tiles * fp8::ValueTileBytes(head_dim)) +
         Aligned(tiles * static_cast<int64_t>(sizeof(fp8::TileScales))) +
         Aligned(int64_t{num_kv_heads} * head_dim * 4);
}

Fp8Kv Fp8KvIn(void* buffer, int32_t num_kv_heads, int32_t head_dim,
              int64_t capacity) {
  const int64_t num_tiles = (capacity + fp8::kTileKeys - 1) / fp8::kTileKeys;
  const int64_t tiles = num_kv_heads * num_tiles;
  auto* at = static_cast<uint8_t*>(buffer);
  Fp8Kv kv = {.k = at, .num_tiles = num_tiles};
  at += Aligned(tiles * fp8::KeyTileBytes(head_dim));
  kv.v = at;
  at += Aligned(tiles * fp8::ValueTileBytes(head_dim));
  kv.scales = reinterpret_cast<fp8::TileScales*>(at);
  at += Aligned(tiles * static_cast<int64_t>(sizeof(fp8::TileScales)));
  kv.mean = reinterpret_cast<float*>(at);
  return kv;
}

int64_t Fp8QueryBytes(int32_t num_q_heads, int32_t head_dim, int64_t q_len) {
  // Both ends may lie inside a tile; packed heads share a tile's rows.
  const int64_t items = num_q_heads * (q_len / fp8::kTileRows + 2);
  return items * (fp8::QueryTileBytes(head_dim) + 2 * fp8::kTileRows * 4);
}

absl::Status Validate(const QuantizeKvParams& params) {
  if (params.num_kv_heads < 1 || params.head_dim < 32 ||
      params.head_dim > 128 || params.head_dim % 32 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_kv_heads ", params.num_kv_heads, ", head_dim ", params.head_dim,
        ": there must be a head, of 32, 64, 96 "
        "or 128"));
  }
  const int64_t capacity = params.out.num_tiles * fp8::kTileKeys;
  if (params.begin < 0 || params.begin >= params.kv_len ||
      params.kv_len > capacity) {
    return absl::InvalidArgumentError(absl::StrCat(
        "keys [", params.begin, ", ", params.kv_len,
        ") to quantise are empty or not within [0, ", capacity, ")"));
  }
  for (const int64_t stride : {params.stride_kv_row, params.stride_kv_head}) {
    if (stride >= 0 && stride % 8 == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "FP8 attention takes strides that are multiples of 8 elements, got ",
        stride));
  }
  return absl::OkStatus();
}

}  // namespace overture::kernels
