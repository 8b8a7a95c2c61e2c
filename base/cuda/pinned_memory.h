// Page-locked host memory, for PinnedBuffer.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace overture::cuda_internal {

// Physical memory that can still be had without swapping: the least of what the
// system and each enclosing control group leave. Linux; elsewhere, or if the
// system does not say, the largest int64_t.
int64_t AvailableHostBytes();

// `bytes` >= 1, page-aligned at least, uninitialised. RESOURCE_EXHAUSTED naming
// the bytes asked for and, where they exceed it, AvailableHostBytes(): pages
// that are handed out lazily would otherwise end the process when touched.
//
// Large blocks are mapped, touched by all cores and then registered: 8.6 GB
// take 0.35 s on a host of 16 cores, where cudaHostAlloc takes 5.6 s; copies
// are as fast (55 GB/s).
absl::StatusOr<void*> AllocatePinned(int64_t bytes);

// `bytes` as allocated. Null is fine.
void FreePinned(void* data, int64_t bytes);

}  // namespace overture::cuda_internal
