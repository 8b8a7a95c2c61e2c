// Tensor maps for TMA: host side of TmaLoad3d and its like.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace overture::kernels {

// A dimension of a bf16 tensor, innermost first.
struct MapDim {
  int64_t size;
  int64_t stride;  // elements
  int32_t box;
};

// A map with 128-byte swizzle, whose boxes are at most 64 columns of the first
// dimension wide. `data` and all strides but the first are multiples of 16
// bytes. At most 5 dimensions. UNIMPLEMENTED if the driver knows no maps,
// INVALID_ARGUMENT with the shape if it refuses this one.
absl::Status MakeTensorMap(const void* data, absl::Span<const MapDim> tensor,
                           CUtensorMap* map);

}  // namespace overture::kernels
