#include "base/allocator.h"

#include <malloc.h>

namespace overture {

void KeepFreedMemory() {
#if defined(__GLIBC__)
  // 32 MiB is the largest threshold that glibc takes.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

}  // namespace overture
