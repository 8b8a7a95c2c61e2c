// The GPU's vertical-slash choice and plan behind two C functions, for
// bench/selector_gpu.py. One size for all heads.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/selectors/vertical_slash_gpu.h"

namespace {

using ::overture::kernels::VerticalSlashSize;

}  // namespace

extern "C" {

struct OvertureSelectorShape {
  int64_t q_begin;
  int64_t q_len;
  int64_t kv_len;
  int32_t num_heads;
  int32_t vertical;
  int32_t slash;
};

int64_t OvertureSelectorScratchBytes(const OvertureSelectorShape* shape) {
  const std::vector<VerticalSlashSize> sizes(
      shape->num_heads, {.vertical = shape->vertical, .slash = shape->slash});
  return overture::kernels::VerticalSlashScratchBytes(shape->q_len,
                                                      shape->kv_len, sizes);
}

// 0, or 1 with the reason on standard error. Sums are [num_heads, kv_len], on
// the device as all else.
int OvertureSelectorPlan(const OvertureSelectorShape* shape,
                         const float* column_sums, const float* diagonal_sums,
                         uint64_t* pairs, void* scratch, int64_t scratch_bytes,
                         void* stream) {
  const std::vector<VerticalSlashSize> sizes(
      shape->num_heads, {.vertical = shape->vertical, .slash = shape->slash});
  const absl::Status status = overture::kernels::LaunchVerticalSlashPlan(
                                  {.column_sums = column_sums,
                                   .diagonal_sums = diagonal_sums,
                                   .sizes = sizes,
                                   .q_begin = shape->q_begin,
                                   .q_len = shape->q_len,
                                   .kv_len = shape->kv_len,
                                   .pairs = pairs},
                                  scratch, scratch_bytes, stream)
                                  .status();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

}  // extern "C"
