// Sixteen floats at a time without intrinsics: GNU vector types, which the
// compiler maps to one AVX-512, two AVX2 or four SSE registers. A function
// marked OVERTURE_SIMD_CLONES is compiled for all three and the loader picks
// one; what it calls from here is inlined into each.
//
// We name the width because GCC 12, left to itself, uses 256 bits on AVX-512.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"

// Off where ifunc is missing (clang 14) or runs before the sanitizer does.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OVERTURE_SIMD_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define OVERTURE_SIMD_CLONES
#endif

#define OVERTURE_SIMD_INLINE inline __attribute__((always_inline))

// All that takes a vector is inlined, so none ever crosses an ABI. Stays off to
// the end of the file that includes this: GCC warns late.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace overture::kernels::simd {

inline constexpr int kLanes = 16;
typedef float F32x16 __attribute__((vector_size(64)));
typedef int32_t I32x16 __attribute__((vector_size(64)));
typedef uint32_t U32x16 __attribute__((vector_size(64)));
typedef uint16_t U16x16 __attribute__((vector_size(32)));

OVERTURE_SIMD_INLINE F32x16 Splat(float value) { return value - F32x16{}; }

OVERTURE_SIMD_INLINE F32x16 Load(const float* p) {
  F32x16 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
OVERTURE_SIMD_INLINE F32x16 Load(const BFloat16* p) {
  U16x16 bits;
  std::memcpy(&bits, p, sizeof(bits));
  return (F32x16)(__builtin_convertvector(bits, U32x16) << 16);
}

OVERTURE_SIMD_INLINE void Store(float* p, F32x16 v) {
  std::memcpy(p, &v, sizeof(v));
}
// Rounds to nearest even, keeps NaN a NaN.
OVERTURE_SIMD_INLINE void Store(BFloat16* p, F32x16 v) {
  const U32x16 u = (U32x16)v;
  const U32x16 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const U32x16 quiet = (u >> 16) | 0x40u;
  const U16x16 bits = __builtin_convertvector(v == v ? rounded : quiet, U16x16);
  std::memcpy(static_cast<void*>(p), &bits, sizeof(bits));
}
// The same for values that are not NaN.
OVERTURE_SIMD_INLINE void StoreNumber(float* p, F32x16 v) { Store(p, v); }
OVERTURE_SIMD_INLINE void StoreNumber(BFloat16* p, F32x16 v) {
  const U32x16 u = (U32x16)v;
  const U16x16 bits =
      __builtin_convertvector((u + 0x7fffu + ((u >> 16) & 1u)) >> 16, U16x16);
  std::memcpy(static_cast<void*>(p), &bits, sizeof(bits));
}

// The nearest e4m3 number, ties to even, of 0 <= x <= 448; NaN stays NaN.
OVERTURE_SIMD_INLINE F32x16 RoundToE4M3(F32x16 x) {
  constexpr uint32_t kExponent = 0x7f800000;
  const U32x16 smallest_normal = (U32x16)Splat(0x1p-6f);
  U32x16 exponent = (U32x16)x & kExponent;
  exponent = exponent > smallest_normal ? exponent : smallest_normal;
  // 1.5 * 2^20 times the octave: its last bit is x's last of three.
  const F32x16 shift = (F32x16)(exponent + (20u << 23) + 0x400000u);
  return x + shift - shift;
}

// The larger of each lane; b where one is NaN.
OVERTURE_SIMD_INLINE F32x16 Max(F32x16 a, F32x16 b) { return a > b ? a : b; }

// Pairwise, so the order of the sum is the same for every instruction set.
OVERTURE_SIMD_INLINE float Sum(F32x16 v) {
  float lanes[kLanes];
  Store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// 2^x for x <= 127; 0 for x < -126, so that 2^-inf is an exact 0; NaN stays
// NaN. Relative error below 2.1e-7 (1.8 units of the last place): the degree-5
// polynomial is within 9.2e-8 of 2^f on |f| <= 1/2 (minimax), its evaluation
// adds 1.2e-7 at most.
OVERTURE_SIMD_INLINE F32x16 Exp2(F32x16 x) {
  const F32x16 shifted = x + 0x1.8p23f;  // the low bits now hold round(x)
  const F32x16 f = x - (shifted - 0x1.8p23f);
  F32x16 p = f * 1.326470879e-3f + 9.671511471e-3f;
  p = p * f + 5.550733776e-2f;
  p = p * f + 2.402224210e-1f;
  p = p * f + 6.931469776e-1f;
  p = p * f + 1.0f;
  const F32x16 scale = (F32x16)(((I32x16)shifted + 127) << 23);
  return x < -126.0f ? F32x16{} : p * scale;
}

inline constexpr float kLog2E = 0x1.715476p+0f;

}  // namespace overture::kernels::simd
