// Cuts one piece of device memory into aligned arrays: without memory it counts
// the bytes that the same cuts need.
#pragma once

#include <cstddef>
#include <cstdint>

namespace overture::kernels {

class ScratchLayout {
 public:
  // `scratch` is 256-byte aligned or null.
  explicit ScratchLayout(void* scratch)
      : scratch_(static_cast<std::byte*>(scratch)) {}

  // `*array` is the next one, of `count` elements, null without memory.
  template <typename T>
  void Take(int64_t count, T** array) {
    static_assert(alignof(T) <= kAlignment);
    *array =
        scratch_ == nullptr ? nullptr : reinterpret_cast<T*>(scratch_ + bytes_);
    bytes_ +=
        (count * int64_t{sizeof(T)} + kAlignment - 1) / kAlignment * kAlignment;
  }

  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kAlignment = 256;

  std::byte* scratch_;
  int64_t bytes_ = 0;
};

}  // namespace overture::kernels
