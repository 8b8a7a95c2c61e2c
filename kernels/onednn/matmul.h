// C = A B or C += A B on one thread with plain strided matrices: the products
// inside attention, which our own loops spread over threads.
#pragma once

#include <compare>
#include <cstdint>
#include <unordered_map>

#include "base/dtype.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace overture::kernels::onednn {

// A is [m, k], B [k, n], C [m, n], all row-major by strides in elements, except
// that a transposed B is stored [n, k]. A and B have `dtype`, C is fp32.
struct MatMulShape {
  DType dtype = DType::kF32;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t stride_a = 0;
  int64_t stride_b = 0;
  int64_t stride_c = 0;
  bool transpose_b = false;
  bool accumulate = false;

  friend auto operator<=>(const MatMulShape&, const MatMulShape&) = default;
};

// One thread's product. Throws dnnl::error, as oneDNN does: see Guard.
class MatMul {
 public:
  // The calling thread's product of this shape, made on first use (50 to 500
  // us) and kept as long as the thread: callers keep their shapes few. REQUIRES
  // MaxThreads() == 1.
  static MatMul& ForThread(const MatMulShape& shape);

  void Run(const void* a, const void* b, float* c);

  // Of oneDNN's implementation, e.g. "brg:avx512_core_amx_bf16".
  const char* name() const { return name_; }

  explicit MatMul(const MatMulShape& shape);

 private:
  dnnl::matmul primitive_;
  dnnl::memory a_;
  dnnl::memory b_;
  dnnl::memory c_;
  dnnl::memory scratch_;
  std::unordered_map<int, dnnl::memory> args_;  // share the four above
  size_t scratch_bytes_ = 0;
  const char* name_ = "";
};

}  // namespace overture::kernels::onednn
