// y = x W^T (+ bias) on the GPU through cuBLASLt: bf16 or e4m3 in, fp32 sums
// but for e4m3 products of up to 4,096 terms, which the hardware adds with 14
// bits. Plain C++ header.
//
// cuBLASLt is opened when the first LinearContext is created, not linked: it is
// 500 MB that a machine without a GPU need not have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "base/dtype.h"
#include "kernels/fp8/e4m3.h"
#include "kernels/precision.h"

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
  // With scales, w and x are e4m3 and stand for w[i] * w_scales[i] and
  // x[i] * x_scales[i], by row.
  struct Product {
    const void* w = nullptr;          // bf16 or e4m3
    const void* x = nullptr;          // bf16 or e4m3
    const float* w_scales = nullptr;  // [m], both or neither
    const float* x_scales = nullptr;  // [n]
    const void* bias = nullptr;       // [m], fp32, or bf16 with scales
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

// Rows that a Linear multiplies: bf16, or with `scales` e4m3 with one a row.
struct LinearInput {
  const void* values = nullptr;  // device, [rows, in_features], 16-byte aligned
  const float* scales = nullptr;  // device, [rows]
};

// One layer's weights, resident on the device. Immutable after creation.
class Linear {
 public:
  // `weight` is [out_features, in_features] row-major, `bias` on the host,
  // empty or [out_features]. kFp8 quantises the weight and lets go of what it
  // was given, and rounds the bias to bf16. The context outlives the result.
  // Done when it returns. INVALID_ARGUMENT names the size that does not fit:
  // features are multiples of 8, for 16-byte accesses; in_features of 16 and at
  // most 65,536 in kFp8.
  static absl::StatusOr<std::unique_ptr<Linear>> Create(
      LinearContext* context, LinearPrecision precision, int64_t out_features,
      int64_t in_features, DeviceBuffer<BFloat16> weight,
      absl::Span<const float> bias, const Stream& stream);

  int64_t in_features() const { return in_features_; }
  int64_t out_features() const { return out_features_; }

  // x: with scales exactly if the weights are kFp8 (INVALID_ARGUMENT); any
  // number of rows. y: device, [rows, out_features] of `y_dtype`, kBF16 or
  // kF32; 16-byte aligned. With `accumulate` adds to y instead of replacing it.
  // A bias or `accumulate` asks for kF32 (INVALID_ARGUMENT), where the sum is
  // rounded once.
  //
  // Unlike LinearCpu's, a row's bits may depend on `rows`: the library chooses
  // by shape how it splits the sums.
  absl::Status Apply(const LinearInput& x, int64_t rows, void* y, DType y_dtype,
                     bool accumulate, const Stream& stream) const;

 private:
  Linear() = default;

  LinearContext* context_ = nullptr;
  int64_t out_features_ = 0;
  int64_t in_features_ = 0;
  // [out_features, in_features], one of the two.
  DeviceBuffer<BFloat16> weight_;
  DeviceBuffer<E4M3> codes_;
  DeviceBuffer<float> scales_;    // [out_features] in kFp8, else empty
  DeviceBuffer<std::byte> bias_;  // empty or [out_features]
};

}  // namespace overture::kernels
