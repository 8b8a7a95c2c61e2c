// y = x W^T (+ bias) on the CPU, W packed once for oneDNN's matrix product.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"

namespace overture::kernels {

// True if the CPU multiplies bf16 in hardware (AVX-512 BF16 or AMX). Without
// it kF32 is the faster compute type.
bool CpuHasBf16();

// Immutable after creation, so thread-safe; one Apply uses all OpenMP threads
// of its caller.
class LinearCpu {
 public:
  // `weight` is [out_features, in_features] row-major fp32, rounded to `dtype`
  // (kF32 or kBF16) while packing; `bias` is empty or [out_features].
  static absl::StatusOr<std::unique_ptr<LinearCpu>> Create(
      DType dtype, int64_t out_features, int64_t in_features,
      absl::Span<const float> weight, absl::Span<const float> bias);
  virtual ~LinearCpu() = default;

  virtual int64_t in_features() const = 0;
  virtual int64_t out_features() const = 0;

  // x: [rows, in_features] of the weights' dtype. y: [rows, out_features] of
  // `y_dtype` (kF32, or the weights' dtype); products are summed in fp32.
  // A row's result does not depend on `rows`.
  virtual absl::Status Apply(const void* x, int64_t rows, void* y,
                             DType y_dtype) const = 0;
};

}  // namespace overture::kernels
