// Optional and required keys: a getter's NOT_FOUND becomes a default, or the
// file's fault; other errors stay.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace overture::engine {

template <typename T>
absl::StatusOr<T> OrDefault(absl::StatusOr<T> value, T fallback) {
  if (absl::IsNotFound(value.status())) return fallback;
  return value;
}

template <typename T>
absl::StatusOr<T> Required(absl::StatusOr<T> value) {
  if (absl::IsNotFound(value.status())) {
    return absl::InvalidArgumentError(value.status().message());
  }
  return value;
}

}  // namespace overture::engine
