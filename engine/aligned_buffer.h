// Uninitialised bytes on a 64-byte boundary: what vector loads like best. Owner
// of one allocation; std::bad_alloc when there is no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace overture::engine {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t num_bytes)
      : data_(static_cast<std::byte*>(
            ::operator new(static_cast<size_t>(num_bytes), kAlignment))),
        num_bytes_(num_bytes) {}

  std::byte* data() const { return data_.get(); }
  int64_t num_bytes() const { return num_bytes_; }
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* data) const {
      ::operator delete(data, kAlignment);
    }
  };
  std::unique_ptr<std::byte[], Free> data_;
  int64_t num_bytes_ = 0;
};

}  // namespace overture::engine
