#include "base/cuda/device.h"

#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

TEST(DeviceTest, TheFirstDeviceDescribesItself) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const int32_t count, CountDevices());
  ASSERT_GE(count, 1);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const DeviceInfo info, GetDeviceInfo(0));
  EXPECT_EQ(info.index, 0);
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.capability_major, 5);
  EXPECT_GE(info.num_multiprocessors, 1);
  EXPECT_GT(info.memory_bytes, int64_t{1} << 30);
  EXPECT_GE(info.shared_bytes_per_block, 48 << 10);
  EXPECT_THAT(ToString(info), HasSubstr(info.name));
}

TEST(DeviceTest, AnIndexOutOfRangeIsRefused) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const int32_t count, CountDevices());
  EXPECT_THAT(GetDeviceInfo(count),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(GetDeviceInfo(-1), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(DeviceTest, FreeMemoryIsWithinTheTotal) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const DeviceMemory memory, GetDeviceMemory());
  EXPECT_GT(memory.free_bytes, 0);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
}

}  // namespace
}  // namespace overture
