// C = A B or C += A B on one thread: the products inside attention and linear
// layers, which our own loops spread over threads.
#pragma once

#include <compare>
#include <cstdint>
#include <unordered_map>

#include "base/dtype.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace overture::kernels::onednn {

// A is [m, k], B [k, n], C [m, n], all row-major without gaps, except that a
// transposed B is stored [n, k] and a packed B in oneDNN's own format. A and B
// have `dtype`. There are no strides because oneDNN 2.6 has its fast kernels
// for dense matrices only: with a gap after a row of A or B it takes a plain
// GEMM at half the rate, and after one of C scalar code.
struct MatMulShape {
  DType dtype = DType::kF32;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  DType c_dtype = DType::kF32;
  bool transpose_b = false;
  bool packed_b = false;  // as PackedDesc; transpose_b is unused
  bool accumulate = false;
  bool has_bias = false;  // fp32 [n], added to every row of C

  friend auto operator<=>(const MatMulShape&, const MatMulShape&) = default;
};

// The format of a packed B, the same for every m. REQUIRES MaxThreads() == 1.
dnnl::memory::desc PackedDesc(DType dtype, int64_t n, int64_t k);

// One thread's product. Throws dnnl::error, as oneDNN does: see Guard.
class MatMul {
 public:
  // The calling thread's product of this shape, made on first use (50 to 500
  // us) and kept as long as the thread: callers keep their shapes few. REQUIRES
  // MaxThreads() == 1.
  static MatMul& ForThread(const MatMulShape& shape);

  void Run(const void* a, const void* b, void* c, const float* bias = nullptr);

  // Of oneDNN's implementation, e.g. "brg:avx512_core_amx_bf16".
  const char* name() const { return name_; }

  explicit MatMul(const MatMulShape& shape);

 private:
  dnnl::matmul primitive_;
  dnnl::memory a_;
  dnnl::memory b_;
  dnnl::memory c_;
  dnnl::memory bias_;  // empty without bias
  dnnl::memory scratch_;
  std::unordered_map<int, dnnl::memory> args_;  // share those above
  size_t scratch_bytes_ = 0;
  const char* name_ = "";
};

}  // namespace overture::kernels::onednn
