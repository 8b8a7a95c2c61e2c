// What the machine's GPUs are and what they can do. Dispatch asks for a
// capability, never for a name. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace overture {

struct DeviceInfo {
  int32_t index = 0;
  std::string name;              // for people
  int32_t capability_major = 0;  // 9.0 is Hopper
  int32_t capability_minor = 0;
  int32_t num_multiprocessors = 0;
  int64_t memory_bytes = 0;  // all of the device's
  int64_t l2_bytes = 0;
  int64_t shared_bytes_per_block = 0;  // with the opt-in
};

struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

// 0 without a device or a driver: that is an answer, not an error.
absl::StatusOr<int32_t> CountDevices();

// INVALID_ARGUMENT unless 0 <= index < CountDevices().
absl::StatusOr<DeviceInfo> GetDeviceInfo(int32_t index);

// Of the calling thread's current device, all processes together.
absl::StatusOr<DeviceMemory> GetDeviceMemory();

// "NVIDIA H200, capability 9.0, 132 multiprocessors, 139.8 GiB".
std::string ToString(const DeviceInfo& info);

}  // namespace overture
