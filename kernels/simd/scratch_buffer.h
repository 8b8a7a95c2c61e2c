// A block of memory that only grows: workspaces that a thread keeps from call
// to call. Thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "base/check.h"

namespace overture::kernels {

class ScratchBuffer {
 public:
  // At least `count` elements, 64-byte aligned, contents undefined. What an
  // earlier call returned is gone if this one is larger.
  template <typename T>
  T* Reserve(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    if (bytes > size_) {
      block_.reset();
      size_ = (bytes + 4095) / 4096 * 4096;
      block_.reset(std::aligned_alloc(4096, size_));
      // Workspaces are a few MB: when even that is missing, there is no caller
      // left who could do anything about it.
      OVERTURE_CHECK(block_ != nullptr);
    }
    return static_cast<T*>(block_.get());
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> block_;
  size_t size_ = 0;
};

}  // namespace overture::kernels
