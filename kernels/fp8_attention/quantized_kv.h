// The quantised K and V of one layer, for the FP8 attention (fp8_attention.h).
// Plain data and arithmetic; the pointers are the device's or, for the CPU
// implementation, the host's.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/fp8_attention/tile_layout.h"

namespace overture::kernels {

// One layer's quantised K and V: views into a buffer of
// Fp8KvBytes(num_kv_heads, head_dim, capacity) bytes, 256-byte aligned.
struct Fp8Kv {
  uint8_t* k = nullptr;  // [num_kv_heads, num_tiles, KeyTileBytes]
  uint8_t* v = nullptr;  // [num_kv_heads, num_tiles, ValueTileBytes]
  fp8::TileScales* scales = nullptr;  // [num_kv_heads, num_tiles]
  float* mean = nullptr;              // [num_kv_heads, head_dim]
  int64_t num_tiles = 0;              // of 64 keys; room for `capacity` keys
};
int64_t Fp8KvBytes(int32_t num_kv_heads, int32_t head_dim, int64_t capacity);
Fp8Kv Fp8KvIn(void* buffer, int32_t num_kv_heads, int32_t head_dim,
              int64_t capacity);

// Bytes of the quantised queries of a launch over q_len rows.
int64_t Fp8QueryBytes(int32_t num_q_heads, int32_t head_dim, int64_t q_len);

struct QuantizeKvParams {
  const void* k = nullptr;  // bf16 [num_kv_heads, kv_len, head_dim] by strides
  const void* v = nullptr;  // as k
  int64_t stride_kv_row = 0;  // elements
  int64_t stride_kv_head = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  // The tiles that hold keys [begin, kv_len) are written, whole. Keys before
  // `begin` are there since earlier calls; with `begin` 0 the mean is taken
  // too, so the first call covers min(fp8::kMeanKeys, all keys).
  int64_t begin = 0;
  int64_t kv_len = 0;  // at most the capacity of `out`
  Fp8Kv out;
};

// INVALID_ARGUMENT unless there is a head of 32, 64, 96 or 128 dimensions,
// [begin, kv_len) is a range of keys that `out` has room for, and the strides
// are multiples of 8 elements.
absl::Status Validate(const QuantizeKvParams& params);

}  // namespace overture::kernels
