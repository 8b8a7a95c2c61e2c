#include "base/cuda/status.h"
#include "tests/base/cuda/axpy.h"

namespace overture::testing {
namespace {

constexpr int kThreads = 256;

__global__ void Axpy(float a, const float* x, float* y, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) y[i] += a * x[i];
}

__global__ void Trap() { __trap(); }

}  // namespace

absl::Status LaunchAxpy(float a, const float* x, float* y, int64_t count,
                        const Stream& stream) {
  if (count == 0) return absl::OkStatus();
  const unsigned blocks =
      static_cast<unsigned>((count + kThreads - 1) / kThreads);
  Axpy<<<blocks, kThreads, 0, stream.get()>>>(a, x, y, count);
  return CudaLaunchStatus("axpy");
}

absl::Status LaunchTrap(const Stream& stream) {
  Trap<<<1, 1, 0, stream.get()>>>();
  return CudaLaunchStatus("trap");
}

absl::Status LaunchTooWide(const Stream& stream) {
  Trap<<<1, 1 << 20, 0, stream.get()>>>();
  return CudaLaunchStatus("too_wide");
}

}  // namespace overture::testing
