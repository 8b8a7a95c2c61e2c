#include "base/cuda/device_buffer.h"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/cuda/stream.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

TEST(DeviceBufferTest, ValuesSurviveTheRoundTrip) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(Stream stream, Stream::Create());
  std::vector<int32_t> values(100003);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int32_t>(i * 2654435761u);
  }
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto device,
      DeviceBuffer<int32_t>::Allocate(static_cast<int64_t>(values.size())));
  EXPECT_EQ(device.bytes(), 400012);
  ASSERT_THAT(device.CopyFromHost(values, stream), IsOk());
  std::vector<int32_t> back(values.size());
  ASSERT_THAT(device.CopyToHost(absl::MakeSpan(back), stream), IsOk());
  ASSERT_THAT(stream.Synchronize(), IsOk());
  EXPECT_EQ(back, values);
}

TEST(DeviceBufferTest, ZeroElementsNeedNoMemory) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(Stream stream, Stream::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto device, DeviceBuffer<float>::Allocate(0));
  EXPECT_EQ(device.data(), nullptr);
  EXPECT_THAT(device.CopyFromHost({}, stream), IsOk());
}

TEST(DeviceBufferTest, SizesThatCannotBeAreRefused) {
  EXPECT_THAT(DeviceBuffer<float>::Allocate(-1),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(
      DeviceBuffer<double>::Allocate(std::numeric_limits<int64_t>::max() / 4),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(DeviceBufferTest, MoreThanTheDeviceHasNamesTheBytes) {
  // 2^50 bytes: more than any device, less than the address space.
  EXPECT_THAT(DeviceBuffer<uint8_t>::Allocate(int64_t{1} << 50),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("1125899906842624 bytes")));
  // And it leaves nothing behind that a later call would trip on.
  EXPECT_THAT(DeviceBuffer<uint8_t>::Allocate(1), IsOk());
}

TEST(DeviceBufferTest, CopiesOfAnotherSizeAreRefused) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(Stream stream, Stream::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto device, DeviceBuffer<float>::Allocate(4));
  std::vector<float> three(3);
  EXPECT_THAT(device.CopyFromHost(three, stream),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(device.CopyToHost(absl::MakeSpan(three), stream),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(DeviceBufferTest, AMovedBufferIsEmptyAndTheOtherOwns) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto first, DeviceBuffer<float>::Allocate(4));
  const float* data = first.data();
  DeviceBuffer<float> second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(first.size(), 0);
}

TEST(PinnedBufferTest, HostReadsWhatItWrote) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto pinned,
                                PinnedBuffer<int64_t>::Allocate(1000));
  for (int64_t i = 0; i < pinned.size(); ++i) pinned.span()[i] = i;
  OVERTURE_ASSERT_OK_AND_ASSIGN(Stream stream, Stream::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto device,
                                DeviceBuffer<int64_t>::Allocate(1000));
  ASSERT_THAT(device.CopyFromHost(pinned.span(), stream), IsOk());
  std::vector<int64_t> back(1000);
  ASSERT_THAT(device.CopyToHost(absl::MakeSpan(back), stream), IsOk());
  ASSERT_THAT(stream.Synchronize(), IsOk());
  EXPECT_EQ(back[999], 999);
}

// Beyond 64 MiB memory is mapped and registered; an odd size ends inside a
// page.
TEST(PinnedBufferTest, LargeBuffersSurviveTheRoundTrip) {
  constexpr int64_t kCount = (int64_t{70} << 20) / 4 + 3;
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto from,
                                PinnedBuffer<int32_t>::Allocate(kCount));
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto to,
                                PinnedBuffer<int32_t>::Allocate(kCount));
  for (int64_t i = 0; i < kCount; ++i) {
    from.span()[i] = static_cast<int32_t>(i * 2654435761u);
  }
  OVERTURE_ASSERT_OK_AND_ASSIGN(Stream stream, Stream::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto device,
                                DeviceBuffer<int32_t>::Allocate(kCount));
  ASSERT_THAT(device.CopyFromHost(from.span(), stream), IsOk());
  ASSERT_THAT(device.CopyToHost(to.span(), stream), IsOk());
  ASSERT_THAT(stream.Synchronize(), IsOk());
  EXPECT_EQ(from.span(), to.span());
  // Moved and replaced: each block goes back as what it was allocated.
  OVERTURE_ASSERT_OK_AND_ASSIGN(to, PinnedBuffer<int32_t>::Allocate(10));
  EXPECT_EQ(to.size(), 10);
}

}  // namespace
}  // namespace overture
