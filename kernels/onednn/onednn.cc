#include "kernels/onednn/onednn.h"

#include <omp.h>

#include "absl/strings/str_cat.h"
#include "kernels/simd/scratch_buffer.h"

namespace overture::kernels::onednn {

const dnnl::engine& Engine() {
  // Never destroyed: other statics may still hold primitives at exit.
  static const auto* engine =
      new dnnl::engine(dnnl::engine::kind::cpu, /*index=*/0);
  return *engine;
}

dnnl::stream& ThreadStream() {
  thread_local dnnl::stream stream(Engine());
  return stream;
}

void* ThreadScratch(size_t bytes) {
  thread_local ScratchBuffer buffer;
  return buffer.Reserve<std::byte>(static_cast<int64_t>(bytes));
}

int MaxThreads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

SingleThreaded::SingleThreaded() : before_(omp_get_max_threads()) {
  omp_set_num_threads(1);
}
SingleThreaded::~SingleThreaded() { omp_set_num_threads(before_); }

dnnl::memory::data_type ToDnnl(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return dnnl::memory::data_type::f32;
    case DType::kF16:
      return dnnl::memory::data_type::f16;
    case DType::kBF16:
      return dnnl::memory::data_type::bf16;
  }
  return dnnl::memory::data_type::undef;
}

absl::Status ToStatus(const dnnl::error& error, absl::string_view what) {
  std::string message = absl::StrCat(what, ": oneDNN: ", error.what(),
                                     " (status ", error.status, ")");
  if (error.status == dnnl_out_of_memory) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::InternalError(message);
}

}  // namespace overture::kernels::onednn
