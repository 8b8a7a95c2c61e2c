// Optional keys: a getter's NOT_FOUND becomes a default, other errors stay.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace overture::engine {

template <typename T>
absl::StatusOr<T> OrDefault(absl::StatusOr<T> value, T fallback) {
  if (absl::IsNotFound(value.status())) return fallback;
  return value;
}

}  // namespace overture::engine
