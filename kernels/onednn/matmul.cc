#include "kernels/onednn/matmul.h"

#include <map>

#include "base/check.h"
#include "kernels/onednn/onednn.h"

namespace overture::kernels::onednn {
namespace {

using dnnl::memory;

dnnl::matmul::primitive_desc Describe(const MatMulShape& shape) {
  const memory::data_type type = ToDnnl(shape.dtype);
  const memory::dims strides_b = shape.transpose_b
                                     ? memory::dims{1, shape.stride_b}
                                     : memory::dims{shape.stride_b, 1};
  const dnnl::matmul::desc desc(
      memory::desc({shape.m, shape.k}, type, memory::dims{shape.stride_a, 1}),
      memory::desc({shape.k, shape.n}, type, strides_b),
      memory::desc({shape.m, shape.n}, memory::data_type::f32,
                   memory::dims{shape.stride_c, 1}));
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (shape.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  return dnnl::matmul::primitive_desc(desc, attr, Engine());
}

}  // namespace

MatMul::MatMul(const MatMulShape& shape) {
  OVERTURE_CHECK(MaxThreads() == 1);
  const dnnl::matmul::primitive_desc pd = Describe(shape);
  name_ = pd.impl_info_str();
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
}

MatMul& MatMul::ForThread(const MatMulShape& shape) {
  thread_local std::map<MatMulShape, MatMul> products;
  return products.try_emplace(shape, shape).first->second;
}

void MatMul::Run(const void* a, const void* b, float* c) {
  a_.set_data_handle(const_cast<void*>(a));
  b_.set_data_handle(const_cast<void*>(b));
  c_.set_data_handle(c);
  scratch_.set_data_handle(ThreadScratch(scratch_bytes_));
  dnnl::stream& stream = ThreadStream();
  primitive_.execute(stream, args_);
  stream.wait();
}

}  // namespace overture::kernels::onednn
