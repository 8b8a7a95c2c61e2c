// Little-endian integers at fixed offsets of a byte string. Internal to
// cache/: the formats at rest are made of these.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"

namespace overture::cache {

static_assert(std::endian::native == std::endian::little,
              "a big-endian port must swap in this file");

// REQUIRES: offset + sizeof(T) <= bytes.size().
template <typename T>
T LoadLittle(absl::string_view bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <typename T>
void StoreLittle(T value, size_t offset, std::string& bytes) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

}  // namespace overture::cache
