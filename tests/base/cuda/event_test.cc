#include "base/cuda/event.h"

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "gtest/gtest.h"
#include "tests/base/cuda/axpy.h"
#include "tests/support/status_matchers.h"

namespace overture {
namespace {

using testing::IsOk;
using testing::StatusIs;

TEST(EventTest, AnEventNeverRecordedIsReached) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(Event event, Event::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(const bool reached, event.IsReached());
  EXPECT_TRUE(reached);
  EXPECT_THAT(event.Synchronize(), IsOk());
}

TEST(EventTest, ElapsedTimeOfWorkIsPositive) {
  constexpr int64_t kCount = 1 << 20;
  OVERTURE_ASSERT_OK_AND_ASSIGN(Stream stream, Stream::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(Event begin, Event::Create(Event::Timing::kOn));
  OVERTURE_ASSERT_OK_AND_ASSIGN(Event end, Event::Create(Event::Timing::kOn));
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto x, DeviceBuffer<float>::Allocate(kCount));
  ASSERT_THAT(begin.Record(stream), IsOk());
  ASSERT_THAT(testing::LaunchAxpy(1, x.data(), x.data(), kCount, stream),
              IsOk());
  ASSERT_THAT(end.Record(stream), IsOk());
  ASSERT_THAT(end.Synchronize(), IsOk());
  OVERTURE_ASSERT_OK_AND_ASSIGN(const float millis, ElapsedMillis(begin, end));
  EXPECT_GT(millis, 0);
}

TEST(EventTest, EventsWithoutTimingMeasureNothing) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(Stream stream, Stream::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(Event begin, Event::Create());
  OVERTURE_ASSERT_OK_AND_ASSIGN(Event end, Event::Create());
  ASSERT_THAT(begin.Record(stream), IsOk());
  ASSERT_THAT(end.Record(stream), IsOk());
  ASSERT_THAT(stream.Synchronize(), IsOk());
  EXPECT_THAT(ElapsedMillis(begin, end), StatusIs(absl::StatusCode::kInternal));
}

}  // namespace
}  // namespace overture
