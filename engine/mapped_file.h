// A whole file, mapped read-only. Owns the mapping; moving it keeps every view
// of bytes() valid. Thread-compatible; the bytes may be read from any thread.
//
// NOTE: a file that another process truncates while it is mapped raises SIGBUS
// on access. Replace model files by rename, never in place.
//
// Errors: NOT_FOUND (no such file), PERMISSION_DENIED, INVALID_ARGUMENT (a
// folder, or a file that is empty), INTERNAL (any other system error).
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace overture::engine {

class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  absl::string_view bytes() const {
    return {static_cast<const char*>(data_), size_};
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace overture::engine
