// Copies between host vectors and device buffers for GPU tests, each finished
// when it returns. A failure is a test failure.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "gtest/gtest.h"

namespace overture::testing {

template <typename T>
DeviceBuffer<T> ToDevice(const std::vector<T>& host, const Stream& stream) {
  auto buffer = DeviceBuffer<T>::Allocate(static_cast<int64_t>(host.size()));
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  if (!buffer.ok()) return {};
  EXPECT_TRUE(buffer->CopyFromHost(absl::MakeConstSpan(host), stream).ok());
  EXPECT_TRUE(stream.Synchronize().ok());
  return *std::move(buffer);
}

template <typename T>
std::vector<T> ToHost(const DeviceBuffer<T>& buffer, const Stream& stream) {
  std::vector<T> host(buffer.size());
  EXPECT_TRUE(buffer.CopyToHost(absl::MakeSpan(host), stream).ok());
  const absl::Status status = stream.Synchronize();
  EXPECT_TRUE(status.ok()) << status;
  return host;
}

}  // namespace overture::testing
