// SIGKILL at random instants under load: every acknowledged span reads back
// clean, any other is absent or whole.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "gtest/gtest.h"
#include "tests/cache/cache_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::cache {
namespace {

// Runs the writer and kills it `delay` after its store is open. Returns what
// it said until then.
std::string WriteAndKill(const std::string& folder, uint64_t first_seed,
                         std::chrono::microseconds delay) {
  int pipe_fds[2];
  EXPECT_EQ(pipe(pipe_fds), 0);
  const std::string seed = std::to_string(first_seed);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_fds[1], STDOUT_FILENO);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    execl(OVERTURE_CRASH_WRITER, "crash_writer", folder.c_str(), seed.c_str(),
          nullptr);
    _exit(127);
  }
  close(pipe_fds[1]);
  std::string said;
  char buffer[4096];
  const auto read_some = [&] {
    const ssize_t n = read(pipe_fds[0], buffer, sizeof(buffer));
    if (n > 0) said.append(buffer, n);
    return n > 0;
  };
  // The instant is random on purpose: no event marks the interesting ones.
  if (read_some()) std::this_thread::sleep_for(delay);
  EXPECT_EQ(kill(child, SIGKILL), 0);
  while (read_some()) {
  }
  close(pipe_fds[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      << "the writer ended by itself: " << status;
  return said;
}

TEST(KvCacheCrashTest, EveryAcknowledgedSpanSurvivesSigkill) {
  const uint32_t run_seed = std::random_device{}();
  std::printf("seed %u\n", run_seed);
  SCOPED_TRACE(run_seed);
  std::mt19937 random(run_seed);
  constexpr int kRounds = 20;
  constexpr uint64_t kSeedsPerRound = 1000;

  const testing::TempDir dir;
  const std::string folder = dir.Join("db");
  std::set<std::tuple<bool, uint64_t, int64_t>> acknowledged;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t first_seed = round * kSeedsPerRound;
    const std::string said = WriteAndKill(
        folder, first_seed,
        std::chrono::microseconds(
            std::uniform_int_distribution<int64_t>(0, 400000)(random)));
    std::istringstream lines(said);
    std::string word;
    ASSERT_TRUE(lines >> word && word == "open") << said;
    bool sparse = false;
    uint64_t seed = 0, last_seed = first_seed;
    int64_t n = 0;
    while (lines >> sparse >> seed >> n) {
      acknowledged.emplace(sparse, seed, n);
      last_seed = seed;
    }

    auto stores = OpenRocksDbStores(folder);
    ASSERT_TRUE(stores.ok()) << stores.status();
    auto cache =
        KvCache::Open({.max_bytes = int64_t{1} << 30}, std::move(stores->meta),
                      std::move(stores->payload));
    ASSERT_TRUE(cache.ok()) << cache.status();
    // No acknowledged entry is ever among the dropped.
    EXPECT_EQ((*cache)->stats().dropped_entries, 0);
    const auto check = [&](bool is_sparse, uint64_t prompt, int64_t tokens) {
      const ChainPolicy policy =
          is_sparse ? SparsePolicy(kBlobLayout) : DensePolicy(kBlobLayout);
      const auto all = Prompt(prompt, tokens);
      const PrefixMatch match = (*cache)->Match(policy, all, tokens);
      OVERTURE_EXPECT_OK(CheckCanary(**cache, policy, match.spans, all));
      return match.num_tokens;
    };
    // All of the last round, every tenth of the rounds before.
    for (const auto& [is_sparse, prompt, tokens] : acknowledged) {
      if (prompt >= first_seed || prompt % 10 == round % 10u) {
        ASSERT_EQ(check(is_sparse, prompt, tokens), tokens) << prompt;
      }
    }
    // What was under way is a clean prefix, or nothing.
    for (uint64_t prompt : {last_seed, last_seed + 1}) {
      for (const int64_t tokens : {290, 640, 1000}) {
        check(prompt % 2 == 1, prompt, tokens);
      }
    }
  }
  std::printf("%zu commits acknowledged\n", acknowledged.size());
  EXPECT_FALSE(acknowledged.empty());
}

}  // namespace
}  // namespace overture::cache
