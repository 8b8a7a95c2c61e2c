#include "base/cuda/stream.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/event.h"
#include "gtest/gtest.h"
#include "tests/base/cuda/axpy.h"
#include "tests/support/status_matchers.h"

namespace overture {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::LaunchAxpy;
using testing::StatusIs;

TEST(StreamTest, AKernelComputesWhatTheHostComputes) {
  constexpr int64_t kCount = 70001;  // not a multiple of the block
  OVERTURE_ASSERT_OK_AND_ASSIGN(Stream stream, Stream::Create());
  std::vector<float> x(kCount), y(kCount), expected(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    x[i] = static_cast<float>(i % 1024);
    y[i] = static_cast<float>(i % 7);
    expected[i] = y[i] + 2 * x[i];  // integers below 2^24: exact
  }
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto dx, DeviceBuffer<float>::Allocate(kCount));
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto dy, DeviceBuffer<float>::Allocate(kCount));
  ASSERT_THAT(dx.CopyFromHost(x, stream), IsOk());
  ASSERT_THAT(dy.CopyFromHost(y, stream), IsOk());
  ASSERT_THAT(LaunchAxpy(2, dx.data(), dy.data(), kCount, stream), IsOk());
  ASSERT_THAT(dy.CopyToHost(absl::MakeSpan(y), stream), IsOk());
  ASSERT_THAT(stream.Synchronize(), IsOk());
  EXPECT_EQ(y, expected);
}

TEST(StreamTest, AStreamWaitsForAnothersEvent) {
  constexpr int64_t kCount = 1 << 22;
  constexpr int kRounds = 64;
  OVERTURE_ASSERT_OK_AND_ASSIGN(Stream first, Stream::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(Stream second, Stream::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(Event done, Event::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto x, DeviceBuffer<float>::Allocate(kCount));
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto y, DeviceBuffer<float>::Allocate(kCount));
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto host,
                                PinnedBuffer<float>::Allocate(kCount));
  const std::vector<float> ones(kCount, 1.0f), zeros(kCount, 0.0f);
  ASSERT_THAT(x.CopyFromHost(ones, first), IsOk());
  ASSERT_THAT(y.CopyFromHost(zeros, first), IsOk());
  for (int i = 0; i < kRounds; ++i) {
    ASSERT_THAT(LaunchAxpy(1, x.data(), y.data(), kCount, first), IsOk());
  }
  ASSERT_THAT(done.Record(first), IsOk());
  // Without the wait this copy would overtake the rounds.
  ASSERT_THAT(second.WaitFor(done), IsOk());
  ASSERT_THAT(y.CopyToHost(host.span(), second), IsOk());
  ASSERT_THAT(second.Synchronize(), IsOk());
  EXPECT_EQ(host.span()[0], kRounds);
  EXPECT_EQ(host.span()[kCount - 1], kRounds);
}

TEST(StreamTest, ALaunchThatCannotBeIsRefusedAtTheLaunch) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(Stream stream, Stream::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto x, DeviceBuffer<float>::Allocate(1));
  EXPECT_THAT(
      testing::LaunchTooWide(stream),
      StatusIs(absl::StatusCode::kInternal, HasSubstr("launch of too_wide")));
  // Not sticky: the next launch is judged on its own.
  EXPECT_THAT(LaunchAxpy(1, x.data(), x.data(), 1, stream), IsOk());
  EXPECT_THAT(stream.Synchronize(), IsOk());
}

// In a process of its own, since the device is lost to the one that traps.
void TrapAndReport() {
  const auto stream = Stream::Create();
  if (!stream.ok() || !testing::LaunchTrap(*stream).ok()) std::_Exit(1);
  const absl::Status status = stream->Synchronize();
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::_Exit(status.ok() ? 1 : 0);
}
TEST(StreamDeathTest, ATrapSurfacesAtTheWaitAsASickProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(TrapAndReport(), ::testing::ExitedWithCode(0),
              "INTERNAL: .*restart it");
}

}  // namespace
}  // namespace overture
