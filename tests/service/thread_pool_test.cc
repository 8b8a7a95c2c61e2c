#include "service/thread_pool.h"

#include <atomic>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace overture::service {
namespace {

TEST(ThreadPoolTest, RunsTasksAtTheSameTimeUpToItsSize) {
  ThreadPool pool(3);
  // Passes only if three threads meet in it.
  auto* barrier = new absl::Barrier(4);
  for (int i = 0; i < 3; ++i) {
    pool.Run([barrier] {
      if (barrier->Block()) delete barrier;
    });
  }
  if (barrier->Block()) delete barrier;
  EXPECT_EQ(pool.num_threads(), 3);
}

TEST(ThreadPoolTest, TasksBeyondItsSizeWaitInOrder) {
  std::vector<int> order;  // one thread, so unguarded
  absl::Notification go;
  {
    ThreadPool pool(1);
    pool.Run([&] { go.WaitForNotification(); });
    for (int i = 0; i < 5; ++i) {
      pool.Run([&order, i] { order.push_back(i); });
    }
    EXPECT_EQ(pool.num_threads(), 1);
    go.Notify();
  }
  EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 2, 3, 4))
      << "the destructor runs what is queued";
}

TEST(ThreadPoolTest, TheThreadHookRunsOncePerThread) {
  std::atomic<int> starts{0};
  std::atomic<int> tasks{0};
  {
    ThreadPool pool(2, [&] { ++starts; });
    for (int i = 0; i < 50; ++i) pool.Run([&] { ++tasks; });
  }
  EXPECT_EQ(tasks, 50);
  EXPECT_GE(starts, 1);
  EXPECT_LE(starts, 2);
}

}  // namespace
}  // namespace overture::service
