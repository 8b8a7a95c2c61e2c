// Owners of memory that the GPU works on: DeviceBuffer on the device,
// PinnedBuffer on the host, page-locked so that copies run beside kernels at
// the full rate of the bus. Both hold `size()` elements of a trivial type,
// uninitialised. Movable, not copyable; thread-compatible.
//
//   OVERTURE_ASSIGN_OR_RETURN(auto q, DeviceBuffer<float>::Allocate(n));
//   OVERTURE_RETURN_IF_ERROR(q.CopyFromHost(values, stream));
//
// Allocation and release may wait for the device, so they belong in set-up, not
// in a layer loop. A buffer outlives the work that was given its pointer.
//
// Errors of Allocate: INVALID_ARGUMENT for a negative count or one whose bytes
// do not fit 63 bits; RESOURCE_EXHAUSTED naming the bytes asked for and, where
// known, those free.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/cuda/stream.h"

namespace overture {

namespace cuda_internal {

enum class MemoryKind { kDevice, kPinned };

// Null for zero elements.
absl::StatusOr<void*> Allocate(MemoryKind kind, int64_t count,
                               int64_t bytes_per_element);
void Free(MemoryKind kind, void* data, int64_t bytes);

// Asynchronous; INVALID_ARGUMENT unless both sides have as many elements.
absl::Status Copy(void* to, int64_t to_count, const void* from,
                  int64_t from_count, int64_t bytes_per_element,
                  const Stream& stream);

}  // namespace cuda_internal

// What the two share; use the names below.
template <typename T, cuda_internal::MemoryKind kKind>
class CudaBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static absl::StatusOr<CudaBuffer> Allocate(int64_t count) {
    absl::StatusOr<void*> data =
        cuda_internal::Allocate(kKind, count, sizeof(T));
    if (!data.ok()) return data.status();
    return CudaBuffer(static_cast<T*>(*data), count);
  }

  CudaBuffer() = default;  // empty
  CudaBuffer(CudaBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  CudaBuffer& operator=(CudaBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~CudaBuffer() { cuda_internal::Free(kKind, data_, bytes()); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }  // elements
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }

  // The elements, which only a pinned buffer lets the host touch.
  absl::Span<T> span() requires(kKind == cuda_internal::MemoryKind::kPinned) {
    return absl::MakeSpan(data_, static_cast<size_t>(size_));
  }
  absl::Span<const T> span() const
      requires(kKind == cuda_internal::MemoryKind::kPinned) {
    return absl::MakeConstSpan(data_, static_cast<size_t>(size_));
  }

  // Copies in the stream's order. From or to pinned memory the host side must
  // stay as it is until the stream gets there; ordinary memory may make the
  // call wait.
  absl::Status CopyFromHost(
      absl::Span<const T> host,
      const Stream& stream) requires(kKind ==
                                     cuda_internal::MemoryKind::kDevice) {
    return cuda_internal::Copy(data_, size_, host.data(),
                               static_cast<int64_t>(host.size()), sizeof(T),
                               stream);
  }
  absl::Status CopyToHost(absl::Span<T> host, const Stream& stream) const
      requires(kKind == cuda_internal::MemoryKind::kDevice) {
    return cuda_internal::Copy(host.data(), static_cast<int64_t>(host.size()),
                               data_, size_, sizeof(T), stream);
  }

 private:
  CudaBuffer(T* data, int64_t size) : data_(data), size_(size) {}

  T* data_ = nullptr;
  int64_t size_ = 0;
};

template <typename T>
using DeviceBuffer = CudaBuffer<T, cuda_internal::MemoryKind::kDevice>;
template <typename T>
using PinnedBuffer = CudaBuffer<T, cuda_internal::MemoryKind::kPinned>;

}  // namespace overture
