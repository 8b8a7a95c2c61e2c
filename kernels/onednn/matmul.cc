#include "kernels/onednn/matmul.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "kernels/onednn/onednn.h"

namespace overture::kernels::onednn {
namespace {

using dnnl::memory;

// The rows that a packed format is chosen for. oneDNN 2.6 chooses the same one
// for any other count, but does not promise to.
constexpr int64_t kPackRows = 64;

memory::desc Dense(int64_t rows, int64_t columns, DType dtype,
                   bool transposed = false) {
  return memory::desc(
      {rows, columns}, ToDnnl(dtype),
      transposed ? memory::format_tag::ba : memory::format_tag::ab);
}

memory::desc BiasDesc(const MatMulShape& shape) {
  return Dense(1, shape.n, DType::kF32);
}

dnnl::matmul::primitive_desc Describe(const MatMulShape& shape,
                                      const memory::desc& b) {
  const memory::desc a = Dense(shape.m, shape.k, shape.dtype);
  const memory::desc c = Dense(shape.m, shape.n, shape.c_dtype);
  // The scratchpad is ours, because oneDNN's own is not safe where a product
  // runs on another thread than made it.
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (shape.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  const auto desc = shape.has_bias
                        ? dnnl::matmul::desc(a, b, BiasDesc(shape), c)
                        : dnnl::matmul::desc(a, b, c);
  return dnnl::matmul::primitive_desc(desc, attr, Engine());
}

memory::desc DescB(const MatMulShape& shape) {
  if (shape.packed_b) return PackedDesc(shape.dtype, shape.n, shape.k);
  return Dense(shape.k, shape.n, shape.dtype, shape.transpose_b);
}

}  // namespace

memory::desc PackedDesc(DType dtype, int64_t n, int64_t k) {
  OVERTURE_CHECK(MaxThreads() == 1);
  const MatMulShape shape = {.dtype = dtype, .m = kPackRows, .n = n, .k = k};
  const memory::desc any({k, n}, ToDnnl(dtype), memory::format_tag::any);
  return Describe(shape, any).weights_desc();
}

MatMul::MatMul(const MatMulShape& shape) {
  OVERTURE_CHECK(MaxThreads() == 1);
  const dnnl::matmul::primitive_desc pd = Describe(shape, DescB(shape));
  name_ = pd.impl_info_str();
  if (absl::StartsWith(name_, "ref")) {
    Log(Severity::kWarning,
        absl::StrCat("kernels: oneDNN has only scalar code (", name_,
                     ") for a product of ", shape.m, " x ", shape.n, " x ",
                     shape.k, " in ", Name(shape.dtype), "; expect it slow"));
  }
  primitive_ = dnnl::matmul(pd);
  a_ = memory(pd.src_desc(), Engine(), nullptr);
  b_ = memory(pd.weights_desc(), Engine(), nullptr);
  c_ = memory(pd.dst_desc(), Engine(), nullptr);
  scratch_ = memory(pd.scratchpad_desc(), Engine(), nullptr);
  scratch_bytes_ = pd.scratchpad_desc().get_size();
  args_ = {{DNNL_ARG_SRC, a_},
           {DNNL_ARG_WEIGHTS, b_},
           {DNNL_ARG_DST, c_},
           {DNNL_ARG_SCRATCHPAD, scratch_}};
  if (shape.has_bias) {
    bias_ = memory(BiasDesc(shape), Engine(), nullptr);
    args_.emplace(DNNL_ARG_BIAS, bias_);
  }
}

MatMul& MatMul::ForThread(const MatMulShape& shape) {
  thread_local std::map<MatMulShape, MatMul> products;
  return products.try_emplace(shape, shape).first->second;
}

void MatMul::Run(const void* a, const void* b, void* c, const float* bias) {
  a_.set_data_handle(const_cast<void*>(a));
  b_.set_data_handle(const_cast<void*>(b));
  c_.set_data_handle(c);
  if (bias_) bias_.set_data_handle(const_cast<float*>(bias));
  scratch_.set_data_handle(ThreadScratch(scratch_bytes_));
  dnnl::stream& stream = ThreadStream();
  primitive_.execute(stream, args_);
  stream.wait();
}

}  // namespace overture::kernels::onednn
