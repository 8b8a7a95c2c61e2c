#include "kernels/sparse_attention/softmax_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/simd/simd.h"

namespace overture::kernels {
namespace {

using simd::F32x16;
using simd::kLanes;

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

OVERTURE_SIMD_INLINE float MaxOf(const float* x, int64_t count) {
  F32x16 m0 = simd::Splat(kMinusInf);
  F32x16 m1 = m0;
  F32x16 m2 = m0;
  F32x16 m3 = m0;
  int64_t i = 0;
  // Four at a time: a maximum takes 4 cycles, but two can start in one.
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    m0 = simd::Max(simd::Load(x + i), m0);
    m1 = simd::Max(simd::Load(x + i + kLanes), m1);
    m2 = simd::Max(simd::Load(x + i + 2 * kLanes), m2);
    m3 = simd::Max(simd::Load(x + i + 3 * kLanes), m3);
  }
  for (; i < count; i += kLanes) m0 = simd::Max(simd::Load(x + i), m0);
  m0 = simd::Max(simd::Max(m0, m1), simd::Max(m2, m3));
  float lanes[kLanes];
  simd::Store(lanes, m0);
  float max = kMinusInf;
  for (float lane : lanes) max = std::max(max, lane);
  return max;
}

// What is taken from exponents, of their maximum; and what becomes of a weight.
struct AsTheyAre {
  static float Reference(float max) { return max; }
  OVERTURE_SIMD_INLINE static F32x16 Round(F32x16 weights) { return weights; }
};
struct AsE4M3 {
  static float Reference(float max) { return std::rint(max); }
  OVERTURE_SIMD_INLINE static F32x16 Round(F32x16 weights) {
    constexpr float kTop = 1 << kTopCodeLog2;
    return simd::RoundToE4M3(weights * kTop) * (1 / kTop);
  }
};

template <typename Weights, typename P>
OVERTURE_SIMD_INLINE float Update(const float* scores, int64_t count,
                                  float scale_log2, SoftmaxRow& row, P* p) {
  const float max =
      std::max(row.max, Weights::Reference(MaxOf(scores, count) * scale_log2));
  // While all is masked any finite base gives weights of 0.
  const float base = max == kMinusInf ? 0.0f : max;
  F32x16 sum0 = {};
  F32x16 sum1 = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    const F32x16 a =
        Weights::Round(simd::Exp2(simd::Load(scores + i) * scale_log2 - base));
    const F32x16 b = Weights::Round(
        simd::Exp2(simd::Load(scores + i + kLanes) * scale_log2 - base));
    sum0 += a;
    sum1 += b;
    simd::StoreNumber(p + i, a);
    simd::StoreNumber(p + i + kLanes, b);
  }
  for (; i < count; i += kLanes) {
    const F32x16 a =
        Weights::Round(simd::Exp2(simd::Load(scores + i) * scale_log2 - base));
    sum0 += a;
    simd::StoreNumber(p + i, a);
  }
  const float factor = row.max == max ? 1.0f : std::exp2(row.max - base);
  row.sum = row.sum * factor + simd::Sum(sum0 + sum1);
  row.max = max;
  return factor;
}

template <typename Out>
OVERTURE_SIMD_INLINE void Finish(const float* x, int64_t count, float factor,
                                 Out* out) {
  for (int64_t i = 0; i < count; i += kLanes) {
    simd::Store(out + i, simd::Load(x + i) * factor);
  }
}

}  // namespace

OVERTURE_SIMD_CLONES float UpdateRow(const float* scores, int64_t count,
                                     float scale_log2, SoftmaxRow& row,
                                     float* p) {
  return Update<AsTheyAre>(scores, count, scale_log2, row, p);
}
OVERTURE_SIMD_CLONES float UpdateRow(const float* scores, int64_t count,
                                     float scale_log2, SoftmaxRow& row,
                                     BFloat16* p) {
  return Update<AsTheyAre>(scores, count, scale_log2, row, p);
}
OVERTURE_SIMD_CLONES float UpdateRowE4M3(const float* scores, int64_t count,
                                         float scale_log2, SoftmaxRow& row,
                                         float* p) {
  return Update<AsE4M3>(scores, count, scale_log2, row, p);
}
OVERTURE_SIMD_CLONES void ScaleRow(float* x, int64_t count, float factor) {
  for (int64_t i = 0; i < count; i += kLanes) {
    simd::Store(x + i, simd::Load(x + i) * factor);
  }
}
OVERTURE_SIMD_CLONES void FinishRow(const float* x, int64_t count, float factor,
                                    float* out) {
  Finish(x, count, factor, out);
}
OVERTURE_SIMD_CLONES void FinishRow(const float* x, int64_t count, float factor,
                                    BFloat16* out) {
  Finish(x, count, factor, out);
}

}  // namespace overture::kernels
