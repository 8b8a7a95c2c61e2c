#include "compress/view.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/probe_attention/probe_attention_cpu.h"
#include "tests/support/status_matchers.h"

namespace overture::compress {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int32_t> Iota(int32_t begin, int32_t end) {
  std::vector<int32_t> v(end - begin);
  std::iota(v.begin(), v.end(), begin);
  return v;
}

SnapKvOptions Options(int32_t window, int32_t capacity, Pooling pooling,
                      int32_t width) {
  return {.window = window,
          .capacity = capacity,
          .pooling = pooling,
          .pooling_width = width};
}

TEST(SnapKvOptionsTest, DefaultsAndSettingsInUseAreValid) {
  EXPECT_THAT(Validate(SnapKvOptions{}), IsOk());
  for (const SnapKvOptions& options :
       {Options(32, 2048, Pooling::kAverage, 5),
        Options(64, 4096, Pooling::kAverage, 13),
        Options(32, 256, Pooling::kMax, 63), Options(1, 2, Pooling::kMax, 1)}) {
    EXPECT_THAT(Validate(options), IsOk());
  }
}

TEST(SnapKvOptionsTest, FieldsOutsideTheirLimitsAreNamed) {
  const auto expect = [](const SnapKvOptions& options, const char* message) {
    EXPECT_THAT(Validate(options), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr(message)));
  };
  expect(Options(0, 10, Pooling::kMax, 7), "window is 0");
  expect(Options(32, 32, Pooling::kMax, 7), "capacity is 32, must be > window");
  expect(Options(32, 31, Pooling::kMax, 7), "capacity is 31");
  expect(Options(32, -1, Pooling::kMax, 7), "capacity is -1");
  expect(Options(32, 64, static_cast<Pooling>(0), 7), "pooling is 0");
  expect(Options(32, 64, Pooling::kMax, 0), "pooling_width is 0");
  expect(Options(32, 64, Pooling::kMax, -7), "pooling_width is -7");
  expect(Options(32, 64, Pooling::kMax, 6), "pooling_width is 6");
  expect(Options(32, 64, Pooling::kMax, 1025), "pooling_width is 1025");
}

TEST(SnapKvTest, NothingIsDroppedUpToTheCapacity) {
  const SnapKvOptions options = Options(8, 20, Pooling::kMax, 7);
  for (const int32_t n : {0, 1, 2, 3, 7, 8, 9, 19, 20}) {
    const std::vector<float> votes(n, 0.5f);
    EXPECT_THAT(SnapKvPositions(votes, options), ElementsAreArray(Iota(0, n)));
  }
}

TEST(SnapKvTest, OneTokenOverTheCapacityDropsExactlyOneBeforeTheWindow) {
  const SnapKvOptions options = Options(8, 20, Pooling::kMax, 1);
  // The window votes least for itself and for position 5.
  std::vector<float> votes(21, 1.0f);
  std::fill(votes.begin() + 13, votes.end(), 0.0f);
  votes[5] = 0.5f;
  std::vector<int32_t> expected = Iota(0, 21);
  expected.erase(expected.begin() + 5);
  EXPECT_THAT(SnapKvPositions(votes, options), ElementsAreArray(expected));
}

TEST(SnapKvTest, SizesAroundTheBudgetKeepTheWindowAndTheCapacity) {
  const int32_t w = 8, c = 20;
  std::mt19937 rng(11);
  for (const Pooling pooling : {Pooling::kMax, Pooling::kAverage}) {
    for (const int32_t width : {1, 7, 63}) {
      for (const int32_t n : {1, w - 1, w, w + 1, c - 1, c, c + 1,
                              2 * (c - w) - 1, 2 * (c - w), 100}) {
        SCOPED_TRACE(absl::StrCat("n ", n, " width ", width));
        std::vector<float> votes(n);
        for (float& vote : votes) vote = (rng() % 1000) / 1000.0f;
        const std::vector<int32_t> kept =
            SnapKvPositions(votes, Options(w, c, pooling, width));
        ASSERT_EQ(kept.size(), std::min(n, c));
        EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
        EXPECT_EQ(std::set<int32_t>(kept.begin(), kept.end()).size(),
                  kept.size());
        EXPECT_GE(kept.front(), 0);
        const int32_t window = std::min(n, w);
        EXPECT_THAT(std::vector<int32_t>(kept.end() - window, kept.end()),
                    ElementsAreArray(Iota(n - window, n)));
      }
    }
  }
}

TEST(SnapKvTest, EqualVotesKeepTheLowestPositionsEveryTime) {
  const std::vector<float> votes(50, 0.25f);
  const SnapKvOptions options = Options(5, 15, Pooling::kMax, 7);
  std::vector<int32_t> expected = Iota(0, 10);
  for (const int32_t p : Iota(45, 50)) expected.push_back(p);
  for (int run = 0; run < 3; ++run) {
    EXPECT_THAT(SnapKvPositions(votes, options), ElementsAreArray(expected));
  }
}

TEST(SnapKvTest, AveragePoolingCountsTheZerosBeyondTheEdges) {
  // Equal votes: the first and last three outputs average over zeros too.
  const std::vector<float> votes(30, 1.0f);
  EXPECT_THAT(SnapKvPositions(votes, Options(5, 10, Pooling::kAverage, 7)),
              ElementsAre(3, 4, 5, 6, 7, 25, 26, 27, 28, 29));
}

TEST(SnapKvTest, VotesOfTheWindowItselfDoNotPoolIntoTheCandidates) {
  std::vector<float> votes(30, 0.0f);
  for (int i = 25; i < 30; ++i) votes[i] = 100;  // the window
  votes[3] = 1;
  for (const Pooling pooling : {Pooling::kMax, Pooling::kAverage}) {
    EXPECT_THAT(SnapKvPositions(votes, Options(5, 8, pooling, 3)),
                ElementsAre(2, 3, 4, 25, 26, 27, 28, 29));
  }
}

TEST(SnapKvTest, MaxPoolingKeepsTheSpanAroundAPeak) {
  std::vector<float> votes(100, 0.0f);
  votes[40] = 1;
  EXPECT_THAT(SnapKvPositions(votes, Options(2, 9, Pooling::kMax, 7)),
              ElementsAre(37, 38, 39, 40, 41, 42, 43, 98, 99));
}

TEST(SnapKvTest, PlateausAreCutByTheUnpooledVoteThenThePosition) {
  // Positions 37..43 pool to 1. Room for four: the peak, the two with votes of
  // their own, then the lowest of the rest.
  std::vector<float> votes(100, 0.0f);
  votes[40] = 1;
  votes[43] = 0.2f;
  votes[42] = 0.1f;
  EXPECT_THAT(SnapKvPositions(votes, Options(2, 6, Pooling::kMax, 7)),
              ElementsAre(37, 40, 42, 43, 98, 99));
}

TEST(SnapKvTest, EqualNeighbourhoodsAverageToEqualValuesWhereverTheyStand) {
  // The same seven awkward votes twice; a running sum would separate them.
  std::vector<float> votes(200, 0.0f);
  votes[0] = 1e6f;
  const float pattern[] = {0.1f, 0.7f, 0.3f, 1e-7f, 0.9f, 0.2f, 0.6f};
  std::copy_n(pattern, 7, &votes[50]);
  std::copy_n(pattern, 7, &votes[150]);
  // 0..3 see the large vote; then the two centres tie and the lower one wins.
  EXPECT_THAT(SnapKvPositions(votes, Options(2, 7, Pooling::kAverage, 7)),
              ElementsAre(0, 1, 2, 3, 53, 198, 199));
}

TEST(SnapKvTest, PoolingWiderThanTheCandidatesWorks) {
  // n - W = 6 candidates, width 63.
  std::vector<float> votes = {0, 0, 0, 5, 0, 1, 9, 9};
  EXPECT_THAT(SnapKvPositions(votes, Options(2, 4, Pooling::kMax, 63)),
              ElementsAre(3, 5, 6, 7));
  EXPECT_THAT(SnapKvPositions(votes, Options(2, 4, Pooling::kAverage, 63)),
              ElementsAre(3, 5, 6, 7));
}

TEST(SnapKvTest, NanVotesRankLastAndNeverSpoilTheOrder) {
  std::vector<float> votes(40, std::numeric_limits<float>::quiet_NaN());
  votes[31] = 0.5f;
  votes[20] = 0.0f;
  EXPECT_THAT(SnapKvPositions(votes, Options(4, 7, Pooling::kMax, 1)),
              ElementsAre(0, 20, 31, 36, 37, 38, 39));
}

TEST(SnapKvTest, EqualsASortOfThePooledVotes) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 rng(seed);
  for (int round = 0; round < 200; ++round) {
    const int32_t window = 1 + rng() % 20;
    const int32_t capacity = window + 1 + rng() % 60;
    const int32_t n = capacity + 1 + rng() % 200;
    const int32_t width = 1 + 2 * (rng() % 20);
    const int32_t candidates = n - window;
    std::vector<float> votes(n);
    // Multiples of 1/8: averages tie often, and exactly.
    for (float& vote : votes) vote = (rng() % 8) / 8.0f;
    std::vector<float> pooled(candidates);
    for (int32_t i = 0; i < candidates; ++i) {
      for (int32_t j = i - width / 2; j <= i + width / 2; ++j) {
        if (j >= 0 && j < candidates) pooled[i] = std::max(pooled[i], votes[j]);
      }
    }
    std::vector<int32_t> order = Iota(0, candidates);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return pooled[a] != pooled[b] ? pooled[a] > pooled[b]
                                    : votes[a] > votes[b];
    });
    order.resize(capacity - window);
    std::sort(order.begin(), order.end());
    for (int32_t i = candidates; i < n; ++i) order.push_back(i);
    ASSERT_EQ(
        SnapKvPositions(votes, Options(window, capacity, Pooling::kMax, width)),
        order);
  }
}

// One row over 24 one-hot keys: its logits are its scores, so a head attends
// with exactly the probabilities it is given.
class GroupedHeadsTest : public ::testing::Test {
 protected:
  static constexpr int kTokens = 24;

  // Votes of one KV head from the G query heads' probabilities.
  std::vector<float> Votes(const std::vector<std::vector<float>>& heads) {
    std::vector<float> q, k(kTokens * kTokens), votes(kTokens);
    for (const std::vector<float>& head : heads) {
      for (const float p : head) q.push_back(std::log(p));
    }
    for (int i = 0; i < kTokens; ++i) k[i * kTokens + i] = 1;
    EXPECT_THAT(kernels::ProbeAttentionCpu(
                    {.dtype = DType::kF32,
                     .q = q.data(),
                     .k = k.data(),
                     .stride_q_row = static_cast<int64_t>(q.size()),
                     .stride_q_head = kTokens,
                     .stride_k_row = kTokens,
                     .stride_k_head = kTokens * kTokens,
                     .num_q_heads = static_cast<int32_t>(heads.size()),
                     .num_kv_heads = 1,
                     .head_dim = kTokens,
                     .num_rows = 1,
                     .kv_len = kTokens,
                     .scale = 1,
                     .window_votes = votes.data(),
                     .window_rows = 1}),
                IsOk());
    return votes;
  }

  // Probabilities: `peaks` as given, the rest spread over the other tokens.
  static std::vector<float> Head(
      const std::vector<std::pair<int, float>>& peaks) {
    float left = 1;
    for (const auto& [at, p] : peaks) left -= p;
    std::vector<float> head(kTokens, left / (kTokens - peaks.size()));
    for (const auto& [at, p] : peaks) head[at] = p;
    return head;
  }
};

TEST_F(GroupedHeadsTest, TheVoteIsTheMeanOfHeadsThatDisagree) {
  const std::vector<std::vector<float>> heads = {
      Head({{2, 0.5f}}), Head({{9, 0.4f}, {2, 0.01f}}), Head({{14, 0.5f}}),
      Head({{9, 0.3f}, {14, 0.1f}})};
  const std::vector<float> votes = Votes(heads);
  for (int c = 0; c < kTokens; ++c) {
    double mean = 0;
    for (const std::vector<float>& head : heads) mean += head[c] / 4;
    // log and exp in fp32, arguments below 8: 8 eps each way, and 2 ULP.
    EXPECT_NEAR(votes[c], mean, mean * 4e-6) << c;
  }
  // One list for the KV head: .74 on 9 and .64 on 14 over four heads; head 0's
  // favourite, 2, has .56 and falls out.
  EXPECT_THAT(SnapKvPositions(votes, Options(1, 3, Pooling::kMax, 1)),
              ElementsAre(9, 14, 23));
}

TEST_F(GroupedHeadsTest, HeadsAreAveragedBeforePooling) {
  // Heads 0 to 2 put .3 each on neighbours 5, 6, 7; head 3 has .5 on 15. Pooled
  // first (width 3), the three meet at 6 with a mean of (.3 + .3 + .3) / 4 =
  // .225 and 6 wins. Averaged first, none of 5..7 has more than about .1, and
  // 15 has .125 + its share: 15 and its neighbours win.
  const std::vector<std::vector<float>> heads = {
      Head({{5, 0.3f}}), Head({{6, 0.3f}}), Head({{7, 0.3f}}),
      Head({{15, 0.5f}})};
  std::vector<float> pooled_first(kTokens);
  for (const std::vector<float>& head : heads) {
    for (int c = 0; c < kTokens; ++c) {
      pooled_first[c] +=
          *std::max_element(&head[std::max(c - 1, 0)],
                            &head[std::min(c + 1, kTokens - 1)] + 1) /
          4;
    }
  }
  ASSERT_EQ(std::max_element(pooled_first.begin(), pooled_first.end()) -
                pooled_first.begin(),
            6);
  EXPECT_THAT(SnapKvPositions(Votes(heads), Options(1, 4, Pooling::kMax, 3)),
              ElementsAre(14, 15, 16, 23));
}

}  // namespace
}  // namespace overture::compress
