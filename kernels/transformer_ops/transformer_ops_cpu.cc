#include "kernels/transformer_ops/transformer_ops_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "kernels/simd/simd.h"

namespace overture::kernels {
namespace {

using simd::F32x16;
using simd::kLanes;

// Below this many elements a parallel region costs more than it saves (about 5
// us to fork and join, against 0.1 ns per element and core).
constexpr int64_t kParallelElements = 32768;

// Rows whose RoPE angles are derived from one exact base.
constexpr int64_t kRopeBlock = 64;

float LoadOne(const float* p) { return *p; }
float LoadOne(const BFloat16* p) { return static_cast<float>(*p); }
void StoreOne(float* p, float value) { *p = value; }
void StoreOne(BFloat16* p, float value) { *p = BFloat16(value); }

// Calls f with a pointer of the element type of `dtype`.
template <typename F>
void WithType(DType dtype, void* p, F&& f) {
  OVERTURE_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  if (dtype == DType::kF32) {
    f(static_cast<float*>(p));
  } else {
    f(static_cast<BFloat16*>(p));
  }
}

OVERTURE_SIMD_INLINE F32x16 Silu(F32x16 x) {
  // exp(-x) is held below 2^126, where x / (1 + exp(-x)) is 0 in fp32 to
  // within 1e-36.
  F32x16 t = x * -simd::kLog2E;
  t = t > 126.0f ? simd::Splat(126.0f) : t;
  return x / (1.0f + simd::Exp2(t));
}

// One row each. The tail of a row goes through a padded copy, so that an
// element's result does not depend on where it stands.
template <typename Out>
OVERTURE_SIMD_INLINE void RmsNormRow(const float* x, const float* weight,
                                     double eps, int64_t columns, Out* out) {
  F32x16 squares = {};
  const int64_t whole = columns / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const F32x16 v = simd::Load(x + i);
    squares += v * v;
  }
  float sum = simd::Sum(squares);
  for (int64_t i = whole; i < columns; ++i) sum += x[i] * x[i];
  const float scale =
      static_cast<float>(1.0 / std::sqrt(double{sum} / columns + eps));
  for (int64_t i = 0; i < whole; i += kLanes) {
    simd::Store(out + i, simd::Load(x + i) * scale * simd::Load(weight + i));
  }
  for (int64_t i = whole; i < columns; ++i) {
    StoreOne(out + i, x[i] * scale * weight[i]);
  }
}

template <typename In, typename Out>
OVERTURE_SIMD_INLINE void SwiGluRow(const In* gate, const In* up,
                                    int64_t columns, Out* out) {
  const int64_t whole = columns / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    simd::Store(out + i, Silu(simd::Load(gate + i)) * simd::Load(up + i));
  }
  for (int64_t i = whole; i < columns; ++i) {
    float gates[kLanes] = {LoadOne(gate + i)};
    simd::Store(gates, Silu(simd::Load(gates)));
    StoreOne(out + i, gates[0] * LoadOne(up + i));
  }
}

template <typename Out>
OVERTURE_SIMD_INLINE void RotateHead(const float* x, const float* cosines,
                                     const float* sines, int64_t half,
                                     Out* out) {
  const int64_t whole = half / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const F32x16 a = simd::Load(x + i);
    const F32x16 b = simd::Load(x + half + i);
    const F32x16 c = simd::Load(cosines + i);
    const F32x16 s = simd::Load(sines + i);
    simd::Store(out + i, a * c - b * s);
    simd::Store(out + half + i, b * c + a * s);
  }
  for (int64_t i = whole; i < half; ++i) {
    const float a = x[i];
    const float b = x[half + i];
    StoreOne(out + i, a * cosines[i] - b * sines[i]);
    StoreOne(out + half + i, b * cosines[i] + a * sines[i]);
  }
}

template <typename Out>
OVERTURE_SIMD_INLINE void CastRow(const float* x, int64_t columns, Out* out) {
  const int64_t whole = columns / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    simd::Store(out + i, simd::Load(x + i));
  }
  for (int64_t i = whole; i < columns; ++i) StoreOne(out + i, x[i]);
}

// Cloned functions cannot be templates: one overload per type.
OVERTURE_SIMD_CLONES void RmsNorm(const float* x, const float* w, double eps,
                                  int64_t columns, float* out) {
  RmsNormRow(x, w, eps, columns, out);
}
OVERTURE_SIMD_CLONES void RmsNorm(const float* x, const float* w, double eps,
                                  int64_t columns, BFloat16* out) {
  RmsNormRow(x, w, eps, columns, out);
}
OVERTURE_SIMD_CLONES void SwiGlu(const float* gate, const float* up,
                                 int64_t columns, float* out) {
  SwiGluRow(gate, up, columns, out);
}
OVERTURE_SIMD_CLONES void SwiGlu(const float* gate, const float* up,
                                 int64_t columns, BFloat16* out) {
  SwiGluRow(gate, up, columns, out);
}
OVERTURE_SIMD_CLONES void SwiGlu(const BFloat16* gate, const BFloat16* up,
                                 int64_t columns, float* out) {
  SwiGluRow(gate, up, columns, out);
}
OVERTURE_SIMD_CLONES void SwiGlu(const BFloat16* gate, const BFloat16* up,
                                 int64_t columns, BFloat16* out) {
  SwiGluRow(gate, up, columns, out);
}
OVERTURE_SIMD_CLONES void Rotate(const float* x, const float* cosines,
                                 const float* sines, int64_t half, float* out) {
  RotateHead(x, cosines, sines, half, out);
}
OVERTURE_SIMD_CLONES void Rotate(const float* x, const float* cosines,
                                 const float* sines, int64_t half,
                                 BFloat16* out) {
  RotateHead(x, cosines, sines, half, out);
}
OVERTURE_SIMD_CLONES void Cast(const float* x, int64_t columns, float* out) {
  CastRow(x, columns, out);
}
OVERTURE_SIMD_CLONES void Cast(const float* x, int64_t columns, BFloat16* out) {
  CastRow(x, columns, out);
}
OVERTURE_SIMD_CLONES void Add(float* x, const float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] += y[i];
}

// cos and sin of (base + offset) * inv_freq from those of both parts, in
// double: the angle addition is exact to 4e-16, at 1/30 of a sincos.
OVERTURE_SIMD_CLONES void AddAngles(const double* base_cos,
                                    const double* base_sin,
                                    const double* offset_cos,
                                    const double* offset_sin, int64_t half,
                                    float* cosines, float* sines) {
  for (int64_t i = 0; i < half; ++i) {
    cosines[i] = static_cast<float>(base_cos[i] * offset_cos[i] -
                                    base_sin[i] * offset_sin[i]);
    sines[i] = static_cast<float>(base_sin[i] * offset_cos[i] +
                                  base_cos[i] * offset_sin[i]);
  }
}

void Angles(const std::vector<double>& inv_freq, int64_t position,
            double* cosines, double* sines) {
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double angle = static_cast<double>(position) * inv_freq[i];
    cosines[i] = std::cos(angle);
    sines[i] = std::sin(angle);
  }
}

}  // namespace

void RmsNormCpu(const float* x, const float* weight, double eps, int64_t rows,
                int64_t columns, DType dtype, void* out) {
  WithType(dtype, out, [&](auto* typed) {
#pragma omp parallel for if (rows * columns > kParallelElements)
    for (int64_t r = 0; r < rows; ++r) {
      RmsNorm(x + r * columns, weight, eps, columns, typed + r * columns);
    }
  });
}

void AddCpu(float* x, const float* y, int64_t count) {
  constexpr int64_t kBlock = 4096;
#pragma omp parallel for if (count > kParallelElements)
  for (int64_t i = 0; i < count; i += kBlock) {
    Add(x + i, y + i, std::min(kBlock, count - i));
  }
}

void SwiGluCpu(const void* gate_up, DType in_dtype, int64_t rows,
               int64_t columns, DType dtype, void* out) {
  WithType(in_dtype, const_cast<void*>(gate_up), [&](const auto* in) {
    WithType(dtype, out, [&](auto* typed) {
#pragma omp parallel for if (rows * columns > kParallelElements)
      for (int64_t r = 0; r < rows; ++r) {
        const auto* gate = in + r * 2 * columns;
        SwiGlu(gate, gate + columns, columns, typed + r * columns);
      }
    });
  });
}

void RopeCpu(const RopeTable& table, const RopeParams& params) {
  const int64_t half = params.head_dim / 2;
  OVERTURE_CHECK(static_cast<int64_t>(table.inv_freq.size()) == half);
  if (params.rows <= 0) return;
  // Bases are multiples of the block in absolute positions, so that a row's
  // bits do not depend on where the range starts.
  const int64_t first_block = params.position_begin / kRopeBlock;
  const int64_t position_end = params.position_begin + params.rows;
  const int64_t num_blocks =
      (position_end + kRopeBlock - 1) / kRopeBlock - first_block;
  const bool parallel =
      params.rows * params.num_heads * params.head_dim > kParallelElements;

  std::vector<double> offset_cos(kRopeBlock * half);
  std::vector<double> offset_sin(kRopeBlock * half);
  const int64_t num_offsets = std::min(kRopeBlock, params.rows);
#pragma omp parallel for if (parallel)
  for (int64_t n = 0; n < num_offsets; ++n) {
    const int64_t offset = (params.position_begin + n) % kRopeBlock;
    Angles(table.inv_freq, offset, &offset_cos[offset * half],
           &offset_sin[offset * half]);
  }

  WithType(params.dtype, params.out, [&](auto* out) {
#pragma omp parallel for if (parallel)
    for (int64_t b = 0; b < num_blocks; ++b) {
      const int64_t base = (first_block + b) * kRopeBlock;
      std::vector<double> base_cos(half);
      std::vector<double> base_sin(half);
      Angles(table.inv_freq, base, base_cos.data(), base_sin.data());
      std::vector<float> cosines(half);
      std::vector<float> sines(half);
      const int64_t begin = std::max(base, params.position_begin);
      const int64_t end = std::min(base + kRopeBlock, position_end);
      for (int64_t position = begin; position < end; ++position) {
        const int64_t offset = position - base;
        AddAngles(base_cos.data(), base_sin.data(), &offset_cos[offset * half],
                  &offset_sin[offset * half], half, cosines.data(),
                  sines.data());
        const int64_t row = position - params.position_begin;
        for (int32_t head = 0; head < params.num_heads; ++head) {
          Rotate(params.x + row * params.stride_x_row +
                     head * params.stride_x_head,
                 cosines.data(), sines.data(), half,
                 out + row * params.stride_out_row +
                     head * params.stride_out_head);
        }
      }
    }
  });
}

void CastHeadsCpu(const RopeParams& params) {
  const bool parallel =
      params.rows * params.num_heads * params.head_dim > kParallelElements;
  WithType(params.dtype, params.out, [&](auto* out) {
#pragma omp parallel for if (parallel)
    for (int64_t row = 0; row < params.rows; ++row) {
      for (int32_t head = 0; head < params.num_heads; ++head) {
        Cast(params.x + row * params.stride_x_row + head * params.stride_x_head,
             params.head_dim,
             out + row * params.stride_out_row + head * params.stride_out_head);
      }
    }
  });
}

}  // namespace overture::kernels
