#include "kernels/ptx/tensor_map.h"

#include <cuda_runtime.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"

namespace overture::kernels {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver entry point, so that nothing links against libcuda.
absl::StatusOr<EncodeTiled> GetEncodeTiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  OVERTURE_RETURN_IF_ERROR(CudaStatus(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                       12000, cudaEnableDefault, &result),
      "cuTensorMapEncodeTiled"));
  if (result != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::UnimplementedError("driver has no cuTensorMapEncodeTiled");
  }
  return reinterpret_cast<EncodeTiled>(function);
}

}  // namespace

absl::Status MakeTensorMap(const void* data, absl::Span<const MapDim> tensor,
                           CUtensorMap* map) {
  OVERTURE_ASSIGN_OR_RETURN(const EncodeTiled encode, GetEncodeTiled());
  constexpr int kMaxRank = 5;
  cuuint64_t dims[kMaxRank];
  cuuint64_t strides[kMaxRank];  // bytes, of all dimensions but the first
  cuuint32_t box[kMaxRank];
  cuuint32_t steps[kMaxRank];
  const int rank = static_cast<int>(tensor.size());
  for (int i = 0; i < rank; ++i) {
    dims[i] = static_cast<cuuint64_t>(tensor[i].size);
    strides[i] = static_cast<cuuint64_t>(tensor[i].stride * 2);
    box[i] = static_cast<cuuint32_t>(tensor[i].box);
    steps[i] = 1;
  }
  const CUresult result = encode(
      map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<void*>(data),
      dims, strides + 1, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const auto print = [](std::string* out, const MapDim& dim) {
    absl::StrAppend(out, dim.size, " by ", dim.stride);
  };
  return absl::InvalidArgumentError(
      absl::StrCat("tensor map of (", absl::StrJoin(tensor, ", ", print),
                   ") elements: driver error ", static_cast<int>(result)));
}

}  // namespace overture::kernels
