#include "base/allocator.h"

#include <malloc.h>

#include <cstddef>
#include <vector>

#include "gtest/gtest.h"

namespace overture {
namespace {

TEST(AllocatorTest, LargeBuffersStayWithTheProcessWhenFreed) {
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "this build's heap does not answer mallinfo2";
#else
  constexpr size_t kBytes = size_t{8} << 20;
  KeepFreedMemory();
  { std::vector<char> buffer(kBytes); }
  EXPECT_GE(mallinfo2().fordblks, kBytes);
#endif
}

}  // namespace
}  // namespace overture
