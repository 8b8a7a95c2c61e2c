// A small real kernel for the tests of base/cuda: it proves that nvcc, the
// linker and the device agree.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/stream.h"

namespace overture::testing {

// y += a x over `count` floats on the device.
absl::Status LaunchAxpy(float a, const float* x, float* y, int64_t count,
                        const Stream& stream);

// Ends with a trap on the device: an error that surfaces at the next wait.
absl::Status LaunchTrap(const Stream& stream);

// Asks for more threads per block than any device has.
absl::Status LaunchTooWide(const Stream& stream);

}  // namespace overture::testing
