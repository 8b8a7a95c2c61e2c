#include "tests/fuzz/allocation_meter.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> live{0};
std::atomic<size_t> peak{0};
std::atomic<size_t> base{0};

void* Allocate(size_t size) {
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  const size_t now = live += malloc_usable_size(memory);
  size_t seen = peak;
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
  return memory;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  live -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

// The aligned forms keep the library's implementation: no reader of ours
// allocates over-aligned memory.
void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }

namespace overture::testing {

void ResetPeakAllocation() {
  base = live.load();
  peak = live.load();
}

size_t PeakAllocatedBytes() { return peak - base; }

}  // namespace overture::testing
