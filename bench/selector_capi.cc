// The GPU's vertical-slash choice and plan behind two C functions, for
// bench/selector_gpu.py. One size for all heads.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "kernels/selectors/vertical_slash_gpu.h"

namespace {

using ::overture::kernels::VerticalSlashSize;

}  // namespace

extern "C" struct OvertureSelectorShape {
  int64_t q_begin;
  int64_t q_len;
  int64_t kv_len;
  int32_t num_heads;
  int32_t vertical;
  int32_t slash;
  float mass;
};

namespace {

absl::Status Run(const OvertureSelectorShape& shape,
                 const overture::kernels::VerticalSlashChoiceParams& params,
                 uint64_t* pairs, std::byte* scratch, int64_t scratch_bytes,
                 void* stream) {
  OVERTURE_ASSIGN_OR_RETURN(const auto choice,
                            overture::kernels::LaunchVerticalSlashChoice(
                                params, scratch, scratch_bytes, stream));
  const int64_t used =
      overture::kernels::VerticalSlashChoiceBytes(params.kv_len, params.sizes);
  return overture::kernels::LaunchVerticalSlashPlan(
             choice,
             {.q_begin = shape.q_begin, .q_len = shape.q_len, .pairs = pairs},
             scratch + used, scratch_bytes - used, stream)
      .status();
}

std::vector<VerticalSlashSize> Sizes(const OvertureSelectorShape& shape) {
  return std::vector<VerticalSlashSize>(
      shape.num_heads,
      {.vertical = shape.vertical, .slash = shape.slash, .mass = shape.mass});
}

}  // namespace

extern "C" {

int64_t OvertureSelectorScratchBytes(const OvertureSelectorShape* shape) {
  const std::vector<VerticalSlashSize> sizes = Sizes(*shape);
  return overture::kernels::VerticalSlashChoiceBytes(shape->kv_len, sizes) +
         overture::kernels::VerticalSlashPlanBytes(shape->q_len, shape->kv_len,
                                                   sizes);
}

// 0, or 1 with the reason on standard error. Sums are [num_heads, kv_len], on
// the device as all else.
int OvertureSelectorPlan(const OvertureSelectorShape* shape,
                         const float* column_sums, const float* diagonal_sums,
                         uint64_t* pairs, void* scratch, int64_t scratch_bytes,
                         void* stream) {
  const std::vector<VerticalSlashSize> sizes = Sizes(*shape);
  const absl::Status status =
      Run(*shape,
          {.column_sums = column_sums,
           .diagonal_sums = diagonal_sums,
           .sizes = sizes,
           .kv_len = shape->kv_len},
          pairs, static_cast<std::byte*>(scratch), scratch_bytes, stream);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

}  // extern "C"
