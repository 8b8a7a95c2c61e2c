// Means of blocks on the GPU: the twin of block_means_cpu.h, with equal bits.
// Plain C++ header.
#pragma once

#include "absl/status/status.h"
#include "kernels/block_means/block_means_cpu.h"

namespace overture::kernels {

// As BlockMeansCpu, pointers on the device and 16-byte aligned; launches on
// `stream` (a cudaStream_t) and returns, borrowing everything until the stream
// has passed the launch. UNIMPLEMENTED for a dtype other than bf16;
// INVALID_ARGUMENT for strides that are not multiples of 8 elements, and as
// CheckBlockMeans.
absl::Status LaunchBlockMeans(const BlockMeansParams& params, void* stream);

}  // namespace overture::kernels
