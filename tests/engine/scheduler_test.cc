#include "engine/scheduler.h"

#include <algorithm>
#include <latch>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

TEST(SchedulerTest, RunsAtOnceWhenNothingRuns) {
  Scheduler scheduler(0);
  auto ticket = scheduler.Enter(0);
  ASSERT_THAT(ticket, IsOk());
  EXPECT_EQ(ticket->ahead(), 0);
  OVERTURE_EXPECT_OK(ticket->Wait({}));
  EXPECT_EQ(scheduler.num_running(), 1);
  EXPECT_EQ(scheduler.num_queued(), 0);
  ticket->Leave();
  EXPECT_EQ(scheduler.num_running(), 0);
}

TEST(SchedulerTest, RefusesOneMoreThanMayWait) {
  Scheduler scheduler(1);
  auto running = scheduler.Enter(0);
  OVERTURE_ASSERT_OK(running->Wait({}));
  auto waiting = scheduler.Enter(0);
  ASSERT_THAT(waiting, IsOk());
  EXPECT_EQ(waiting->ahead(), 1);
  EXPECT_THAT(scheduler.Enter(9),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("1 requests wait, limit 1")));
  waiting->Leave();
  EXPECT_THAT(scheduler.Enter(0), IsOk());
}

TEST(SchedulerTest, CountsOnlyWhoRunsBeforeAsAhead) {
  Scheduler scheduler(8);
  auto running = scheduler.Enter(0);
  OVERTURE_ASSERT_OK(running->Wait({}));
  auto low = scheduler.Enter(-1);
  auto high = scheduler.Enter(3);
  auto middle = scheduler.Enter(0);
  EXPECT_EQ(low->ahead(), 1);
  EXPECT_EQ(high->ahead(), 1);
  EXPECT_EQ(middle->ahead(), 2);
  EXPECT_EQ(scheduler.num_queued(), 3);
}

TEST(SchedulerTest, RunsByPriorityThenArrival) {
  Scheduler scheduler(8);
  std::optional<Scheduler::Ticket> running = *scheduler.Enter(0);
  OVERTURE_ASSERT_OK(running->Wait({}));
  std::mutex mutex;
  std::vector<int> order;
  std::vector<std::jthread> threads;
  const std::vector<int> priorities = {0, 5, 0, 5, -1};
  for (size_t i = 0; i < priorities.size(); ++i) {
    // Entered here, so that the order of arrival is ours.
    threads.emplace_back(
        [&, i, ticket = *scheduler.Enter(priorities[i])]() mutable {
          OVERTURE_EXPECT_OK(ticket.Wait({}));
          const std::lock_guard lock(mutex);
          order.push_back(static_cast<int>(i));
        });
  }
  running->Leave();
  threads.clear();
  EXPECT_EQ(order, (std::vector<int>{1, 3, 0, 2, 4}));
}

TEST(SchedulerTest, OnlyOneRunsAtATime) {
  Scheduler scheduler(64);
  int running = 0;  // races under a broken scheduler
  int most = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) {
        auto ticket = scheduler.Enter(k % 3);
        ASSERT_THAT(ticket, IsOk());
        OVERTURE_ASSERT_OK(ticket->Wait({}));
        most = std::max(most, ++running);
        --running;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(scheduler.num_running(), 0);
  EXPECT_EQ(scheduler.num_queued(), 0);
}

TEST(SchedulerTest, StoppedWhileWaitingGivesUpItsPlace) {
  Scheduler scheduler(2);
  auto running = scheduler.Enter(0);
  OVERTURE_ASSERT_OK(running->Wait({}));
  std::stop_source stop;
  std::latch entered(1);
  std::jthread waiter([&] {
    auto ticket = scheduler.Enter(0);
    entered.count_down();
    EXPECT_THAT(ticket->Wait(stop.get_token()),
                StatusIs(absl::StatusCode::kCancelled));
  });
  entered.wait();
  stop.request_stop();
  waiter.join();
  EXPECT_EQ(scheduler.num_queued(), 0);
  running->Leave();
  // The place given up is not waited for.
  auto next = scheduler.Enter(0);
  OVERTURE_EXPECT_OK(next->Wait({}));
}

TEST(SchedulerTest, StoppedBeforeItsTurnNeverRuns) {
  Scheduler scheduler(2);
  std::stop_source stop;
  stop.request_stop();
  auto ticket = scheduler.Enter(0);
  EXPECT_THAT(ticket->Wait(stop.get_token()),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(scheduler.num_running(), 0);
}

TEST(SchedulerTest, MovedTicketLeavesOnce) {
  Scheduler scheduler(2);
  {
    auto ticket = scheduler.Enter(0);
    OVERTURE_ASSERT_OK(ticket->Wait({}));
    Scheduler::Ticket moved = *std::move(ticket);
    EXPECT_EQ(scheduler.num_running(), 1);
  }
  EXPECT_EQ(scheduler.num_running(), 0);
}

}  // namespace
}  // namespace overture::engine
