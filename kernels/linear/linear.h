// y = x W^T (+ bias) on the GPU through cuBLASLt: bf16 in, fp32 sums. Plain C++
// header.
//
// cuBLASLt is opened when the first LinearContext is created, not linked: it is
// 500 MB that a machine without a GPU need not have.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "base/dtype.h"

namespace overture::kernels {

// What all products of a stream share: the library's handle, its workspace and
// the algorithm chosen for each shape. One thread at a time, products on one
// stream at a time, since they share the workspace.
class LinearContext {
 public:
  // On the calling thread's current device. FAILED_PRECONDITION if the library
  // is not found, with where it was looked for.
  static absl::StatusOr<std::unique_ptr<LinearContext>> Create();
  virtual ~LinearContext() = default;

  // Device memory that the context holds.
  virtual int64_t WorkspaceBytes() const = 0;

  // y [n, m] = x [n, k] w [m, k]^T + bias + (accumulate ? y : 0), row-major.
  struct Product {
    const void* w = nullptr;  // bf16
    const void* x = nullptr;  // bf16
    const float* bias = nullptr;
    void* y = nullptr;
    DType y_dtype = DType::kBF16;
    int64_t m = 0;
    int64_t n = 0;
    int64_t k = 0;
    bool accumulate = false;
  };
  // Errors as Linear::Apply.
  virtual absl::Status Run(const Product& product, const Stream& stream) = 0;
};

// One layer's weights, resident on the device. Immutable after creation.
class Linear {
 public:
  // `weight` is [out_features, in_features] row-major fp32, rounded to bf16;
  // `bias` is empty or [out_features]. Both are copied. The context outlives
  // the result. INVALID_ARGUMENT names the size that does not fit: features are
  // multiples of 8, for 16-byte accesses.
  static absl::StatusOr<std::unique_ptr<Linear>> Create(
      LinearContext* context, int64_t out_features, int64_t in_features,
      absl::Span<const float> weight, absl::Span<const float> bias,
      const Stream& stream);

  int64_t in_features() const { return in_features_; }
  int64_t out_features() const { return out_features_; }

  // x: device, bf16 [rows, in_features]; y: device, [rows, out_features] of
  // `y_dtype`, kBF16 or kF32; 16-byte aligned. With `accumulate` adds to y
  // instead of replacing it. A bias or `accumulate` asks for kF32
  // (INVALID_ARGUMENT), where the sum is rounded once.
  //
  // Unlike LinearCpu's, a row's bits may depend on `rows`: the library chooses
  // by shape how it splits the sums.
  absl::Status Apply(const void* x, int64_t rows, void* y, DType y_dtype,
                     bool accumulate, const Stream& stream) const;

 private:
  Linear() = default;

  LinearContext* context_ = nullptr;
  int64_t out_features_ = 0;
  int64_t in_features_ = 0;
  DeviceBuffer<BFloat16> weight_;  // [out_features, in_features]
  DeviceBuffer<float> bias_;       // empty or [out_features]
};

}  // namespace overture::kernels
