#include "base/cuda/pinned_memory.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"

namespace overture::cuda_internal {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
constexpr int64_t kPage = 4096;
// From here on mapping pays; below, cudaHostAlloc takes under 50 ms.
constexpr int64_t kMappedBytes = int64_t{64} << 20;
constexpr int64_t kMaxThreads = 16;

// The number in a file that holds nothing else; kUnlimited for "max" or none.
int64_t ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  int64_t value = kUnlimited;
  if (!(file >> text) || !absl::SimpleAtoi(text, &value)) return kUnlimited;
  return value;
}

int64_t SystemAvailable() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kibibytes = 0;
  std::string rest;
  while (file >> name >> kibibytes && std::getline(file, rest)) {
    if (name == "MemAvailable:") return kibibytes * 1024;
  }
  return kUnlimited;
}

// Control groups, version 2: this process's and those around it.
int64_t ControlGroupAvailable() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  int64_t available = kUnlimited;
  while (std::getline(file, line)) {
    if (!absl::StartsWith(line, "0::/")) continue;
    std::string group = line.substr(3);
    for (;;) {
      const std::string folder = absl::StrCat("/sys/fs/cgroup", group);
      const int64_t limit = ReadNumber(folder + "/memory.max");
      const int64_t used = ReadNumber(folder + "/memory.current");
      if (limit != kUnlimited && used != kUnlimited) {
        available = std::min(available, std::max<int64_t>(0, limit - used));
      }
      if (group.empty() || group == "/") break;
      group.resize(group.rfind('/'));
    }
  }
  return available;
}

// Makes the kernel find the pages now, on all cores at once.
void TouchPages(char* data, int64_t bytes) {
  const int64_t num_threads =
      std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, kMaxThreads);
  const int64_t share =
      (bytes / num_threads + kPage) / kPage * kPage;  // whole pages
  const auto touch = [data, bytes, share](int64_t part) {
    const int64_t end = std::min(bytes, (part + 1) * share);
    for (int64_t at = part * share; at < end; at += kPage) {
      *const_cast<volatile char*>(data + at) = 0;
    }
  };
  std::vector<std::thread> threads;
  int64_t part = 0;
  try {
    for (; part + 1 < num_threads; ++part) threads.emplace_back(touch, part);
  } catch (const std::system_error&) {
    // No more threads: this one does what is left.
  }
  for (; part < num_threads; ++part) touch(part);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int64_t AvailableHostBytes() {
  return std::min(SystemAvailable(), ControlGroupAvailable());
}

absl::StatusOr<void*> AllocatePinned(int64_t bytes) {
  const std::string what = absl::StrCat(bytes, " bytes of pinned memory");
  void* data = nullptr;
  if (bytes < kMappedBytes) {
    OVERTURE_RETURN_IF_ERROR(CudaStatus(
        cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocDefault),
        what));
    return data;
  }
  const int64_t available = AvailableHostBytes();
  if (bytes > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ", ", available, " are available"));
  }
  data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return absl::ResourceExhaustedError(what);
  // A wish: huge pages halve the time to touch and to register.
  madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  TouchPages(static_cast<char*>(data), bytes);
  const absl::Status registered =
      CudaStatus(cudaHostRegister(data, static_cast<size_t>(bytes),
                                  cudaHostRegisterDefault),
                 what);
  if (!registered.ok()) {
    munmap(data, static_cast<size_t>(bytes));
    return registered;
  }
  return data;
}

void FreePinned(void* data, int64_t bytes) {
  if (data == nullptr) return;
  // An error here is that of earlier work and surfaces where that is awaited.
  if (bytes < kMappedBytes) {
    cudaFreeHost(data);
    return;
  }
  cudaHostUnregister(data);
  munmap(data, static_cast<size_t>(bytes));
}

}  // namespace overture::cuda_internal
