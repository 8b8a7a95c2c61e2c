// y = x W^T (+ bias) on the CPU, W packed once for oneDNN's matrix product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"

namespace overture::kernels {

// True if the CPU multiplies bf16 in hardware (AVX-512 BF16 or AMX) and oneDNN
// may use it (the environment variable ONEDNN_MAX_CPU_ISA can forbid it).
// Without it kF32 is the faster compute type.
bool CpuHasBf16();

// Immutable after creation, so thread-safe. One Apply uses all OpenMP threads
// of its caller, or one inside a parallel region. Owns its packed weights.
//
// bf16 on a CPU without bf16 hardware is computed from the same bf16 values in
// f32: right, but no faster than kF32.
class LinearCpu {
 public:
  // `weight` is [out_features, in_features] row-major fp32, rounded to `dtype`
  // (kF32 or kBF16) while packing; `bias` is empty or [out_features]. Both are
  // copied. INVALID_ARGUMENT names the size or dtype that does not fit.
  static absl::StatusOr<std::unique_ptr<LinearCpu>> Create(
      DType dtype, int64_t out_features, int64_t in_features,
      absl::Span<const float> weight, absl::Span<const float> bias);
  virtual ~LinearCpu() = default;

  // What Create checks before it reads anything.
  static absl::Status Validate(DType dtype, int64_t out_features,
                               int64_t in_features, size_t weight_size,
                               size_t bias_size);

  virtual int64_t in_features() const = 0;
  virtual int64_t out_features() const = 0;

  // x: [rows, in_features] of the weights' dtype. y: [rows, out_features] of
  // `y_dtype` (kF32, or the weights' dtype); products are summed in fp32.
  //
  // A row's result depends, bit for bit, neither on `rows` nor on the number of
  // threads, on one CPU model.
  virtual absl::Status Apply(const void* x, int64_t rows, void* y,
                             DType y_dtype) const = 0;
};

}  // namespace overture::kernels
