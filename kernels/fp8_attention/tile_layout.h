// Where the quantised Q, K and V of the FP8 attention lie: whole tiles, each as
// the tensor cores read it from shared memory, so that one bulk copy fetches
// one. Plain C++ header, usable on host and device.
//
// A value is code * 2^exponent, code in e4m3: one exponent per query row and
// head, and per 64-key tile and KV head one for K and one for V. Powers of two
// cost e4m3 no precision, scale exactly, and make the codes the same on every
// machine. From K the mean of the sequence's first keys is taken away: see
// fp8_attention.h.
#pragma once

#include <bit>
#include <cstdint>

namespace overture::kernels::fp8 {

inline constexpr int32_t kTileKeys = 64;
inline constexpr int32_t kTileRows = 128;
// Keys whose mean is subtracted: one token block, so that what a block's
// attention computes depends on nothing after the block.
inline constexpr int32_t kMeanKeys = 256;

// Bytes of a row in a K or Q tile.
constexpr int32_t KeyRowBytes(int32_t head_dim) {
  return head_dim <= 64 ? 64 : 128;
}
constexpr int32_t KeyTileBytes(int32_t head_dim) {
  return kTileKeys * KeyRowBytes(head_dim);
}
constexpr int32_t ValueTileBytes(int32_t head_dim) {
  return kTileKeys * head_dim;
}
constexpr int32_t QueryTileBytes(int32_t head_dim) {
  return kTileRows * KeyRowBytes(head_dim);
}

// Byte of a matrix whose rows of 64 or 128 bytes are swizzled by as many.
constexpr int32_t Swizzled(int32_t row, int32_t byte, int32_t row_bytes) {
  const int32_t offset = row * row_bytes + byte;
  return offset ^ ((offset >> 3) & (row_bytes - 16));
}

// Byte of an element inside its K tile: [64 keys, row bytes].
constexpr int32_t KeyOffset(int32_t key, int32_t dim, int32_t head_dim) {
  return Swizzled(key, dim, KeyRowBytes(head_dim));
}

// Byte of an element inside its V tile: [head_dim, 64 keys]. In every 32 keys,
// key 16 h + 8 j + 2 t + i comes at 16 h + 4 t + 2 j + i: a thread's scores of
// four 8-key blocks, (h, j) and its columns 2 t + i, are then its part of the A
// operand as they stand.
constexpr int32_t ValueOffset(int32_t key, int32_t dim) {
  const int32_t place = (key & 0x31) | (key & 0x08) >> 2 | (key & 0x06) << 1;
  return Swizzled(dim, place, kTileKeys);
}

// Byte of an element inside its Q tile: [128 rows, row bytes], as keys.
constexpr int32_t QueryOffset(int32_t row, int32_t dim, int32_t head_dim) {
  return Swizzled(row, dim, KeyRowBytes(head_dim));
}

// Scales of one 64-key tile of a KV head.
struct alignas(16) TileScales {
  float k = 0;          // 2^exponent of K
  float v_log2 = 0;     // exponent of V
  float v_inverse = 0;  // 2^-exponent of V
  float unused = 0;
};
static_assert(sizeof(TileScales) == 16);

// What the codes of a tile or row may be, and so their exponent.
struct CodeRange {
  // Octaves below e4m3's largest, 448, that codes stay.
  int32_t headroom;
  // Smaller exponents do not occur: values below 2^(min_exponent - 10) vanish.
  int32_t min_exponent;
};
// Q and K: at most 14, so that the sum of 128 products, at most 25,088, fits an
// f16 accumulator.
inline constexpr CodeRange kScoreCodes = {5, -48};
// V: a tile's scale is a factor of its probabilities. Values of ordinary size,
// up to 0.4, share one, and tiles of zeros have no smaller one, so that weights
// in one tile are not rounded more coarsely than in another; values from 2^-16
// on keep all bits.
inline constexpr CodeRange kValueCodes = {0, -10};

// The least exponent with which `largest`, the bits of the largest magnitude
// to be held, fits the range; e4m3's 448 is 1.75 * 2^8. REQUIRES a finite
// value.
constexpr int32_t ScaleExponent(uint32_t largest, CodeRange range) {
  const int32_t exponent = static_cast<int32_t>(largest >> 23) - 127 - 8 +
                           ((largest & 0x7fffffu) > 0x600000u ? 1 : 0) +
                           range.headroom;
  return exponent < range.min_exponent ? range.min_exponent : exponent;
}

// What a query is multiplied with before it is quantised: scores of its codes
// are then in units of log2.
constexpr float ScaleLog2(float softmax_scale) {
  return softmax_scale * 1.4426950408889634f;
}

constexpr bool IsFinite(uint32_t magnitude) { return magnitude < 0x7f800000u; }

}  // namespace overture::kernels::fp8
