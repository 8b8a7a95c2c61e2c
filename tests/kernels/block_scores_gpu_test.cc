#include "kernels/selectors/block_scores_gpu.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda/stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/block_problem.h"
#include "tests/support/device_copy.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::overture::testing::ToDevice;
using ::overture::testing::ToHost;
using testing::BlockProblem;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Result {
  BlockSets sets;
  std::vector<float> scores;  // NaN where none was written
};

Result RunGpu(const BlockProblem& problem,
              const std::vector<BlockRule>& rules) {
  BlockScoreParams p = problem.params();
  Result result;
  auto stream = Stream::Create();
  EXPECT_TRUE(stream.ok()) << stream.status();
  if (!stream.ok()) return result;
  const auto q = ToDevice(problem.bf16_q(), *stream);
  const auto means = ToDevice(problem.bf16_means(), *stream);
  const auto supers = ToDevice(problem.bf16_supers(), *stream);
  p.q = q.data();
  p.k_means = means.data();
  p.super_means = supers.data();
  const int64_t cells = p.num_q_heads * p.num_q_tiles();
  const int64_t words = BlockWords(p.num_blocks());
  // Rubbish, so that what nobody writes shows.
  const auto bits =
      ToDevice(std::vector<uint32_t>(cells * words, 0xa5a5a5a5u), *stream);
  const auto scores =
      ToDevice(std::vector<float>(cells * p.num_blocks() + 1, kNan), *stream);
  const absl::Status status =
      LaunchBlockScores(p, rules, const_cast<uint32_t*>(bits.data()),
                        const_cast<float*>(scores.data()), stream->get());
  EXPECT_TRUE(status.ok()) << status;
  result.scores = ToHost(scores, *stream);
  result.sets = {.q_begin = p.q_begin,
                 .q_len = p.q_len,
                 .num_heads = p.num_q_heads,
                 .num_q_tiles = p.num_q_tiles(),
                 .num_words = words,
                 .bits = ToHost(bits, *stream)};
  return result;
}

// Scores are the CPU's but for roundings, and of those scores the GPU keeps
// what the rule says.
void ExpectEqualsTheCpu(const BlockProblem& problem,
                        const std::vector<BlockRule>& rules) {
  const BlockScoreParams& p = problem.params();
  const Result gpu = RunGpu(problem, rules);
  const int64_t num_blocks = p.num_blocks();
  std::vector<float> cpu(p.num_q_heads * p.num_q_tiles() * num_blocks, kNan);
  OVERTURE_ASSERT_OK(ChooseBlocksCpu(p, rules, cpu.data()).status());
  for (int64_t cell = 0; cell < p.num_q_heads * p.num_q_tiles(); ++cell) {
    const BlockRule& rule = rules[cell / p.num_q_tiles()];
    const int64_t before =
        p.first_tile_begin() / kBlockTileRows + cell % p.num_q_tiles();
    SCOPED_TRACE(absl::StrCat("cell ", cell));
    std::vector<float> scores;
    std::vector<int64_t> blocks;
    for (int64_t block = 0; block < before && rule.IsOn(); ++block) {
      const float score = gpu.scores[cell * num_blocks + block];
      if (std::isnan(score)) continue;
      scores.push_back(score);
      blocks.push_back(block);
      // Not scored there: its super-block is among those where roundings
      // decide, which BeyondTheBestSuperBlocks looks at.
      if (std::isnan(cpu[cell * num_blocks + block])) continue;
      ASSERT_NEAR(score, cpu[cell * num_blocks + block],
                  2 * problem.Tolerance())
          << "block " << block;
    }
    if (rule.IsOn()) {
      ASSERT_EQ(static_cast<int64_t>(scores.size()),
                before / kBlocksPerSuperBlock <= kMaxScoredSuperBlocks
                    ? before
                    : kMaxScoredSuperBlocks * kBlocksPerSuperBlock +
                          before % kBlocksPerSuperBlock);
    }
    std::vector<uint32_t> want(gpu.sets.num_words);
    const std::vector<bool> keep = KeepBlocks(scores, rule);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const int64_t bit = before - blocks[i];
      if (keep[i]) want[bit / 32] |= 1u << (bit % 32);
    }
    for (int64_t w = 0; w < gpu.sets.num_words; ++w) {
      ASSERT_EQ(gpu.sets.bits[cell * gpu.sets.num_words + w], want[w])
          << "word " << w;
    }
  }
}

const std::vector<BlockRule> kRules = {
    {.threshold = 0.5f}, {}, {.count = 7}, {.threshold = 0.1f, .count = 5}};

TEST(BlockScoresGpuTest, EqualsTheCpuAtAnyLengthAndOffset) {
  for (const auto& [q_begin, q_len] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1},
                                                {0, 128},
                                                {0, 129},
                                                {0, 3000},
                                                {127, 1},
                                                {128, 1},
                                                {500, 700},
                                                {4097, 127},
                                                {8191, 2},
                                                {20000, 777}}) {
    for (const int32_t head_dim : {64, 96, 128}) {
      SCOPED_TRACE(absl::StrCat("q_begin ", q_begin, " q_len ", q_len, " dim ",
                                head_dim));
      ASSERT_NO_FATAL_FAILURE(ExpectEqualsTheCpu(
          BlockProblem(
              {.head_dim = head_dim, .q_begin = q_begin, .q_len = q_len}),
          kRules));
    }
  }
}

TEST(BlockScoresGpuTest, EqualsTheCpuForAnyGroup) {
  for (const auto& [q_heads, kv_heads] :
       std::vector<std::pair<int, int>>{{1, 1}, {3, 1}, {8, 2}, {128, 16}}) {
    SCOPED_TRACE(absl::StrCat(q_heads, " heads, KV ", kv_heads));
    ASSERT_NO_FATAL_FAILURE(ExpectEqualsTheCpu(
        BlockProblem({.num_q_heads = q_heads,
                      .num_kv_heads = kv_heads,
                      .head_dim = 64,
                      .q_begin = 1000,
                      .q_len = 300}),
        std::vector<BlockRule>(q_heads, {.threshold = 0.3f})));
  }
}

TEST(BlockScoresGpuTest, LargeLogitsNeitherOverflowNorVanish) {
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsTheCpu(
      BlockProblem({.head_dim = 128, .q_len = 1000, .q_size = 400}), kRules));
}

TEST(BlockScoresGpuTest, BeyondTheBestSuperBlocksNoneIsScored) {
  for (const int64_t before : {65 * 16 - 1, 65 * 16, 70 * 16 + 5, 8191}) {
    SCOPED_TRACE(absl::StrCat(before, " blocks"));
    const BlockProblem problem({.num_q_heads = 4,
                                .num_kv_heads = 2,
                                .head_dim = 64,
                                .q_begin = before * kBlockTileRows + 3,
                                .q_len = 140});
    ASSERT_NO_FATAL_FAILURE(ExpectEqualsTheCpu(problem, kRules));
    const Result gpu = RunGpu(problem, kRules);
    const int64_t num_supers = before / kBlocksPerSuperBlock;
    if (num_supers <= kMaxScoredSuperBlocks) continue;
    for (const int64_t head : {0, 2, 3}) {
      std::vector<double> supers(num_supers);
      for (int64_t i = 0; i < num_supers; ++i) {
        supers[i] = problem.SuperScore(head, 0, i);
      }
      std::vector<double> sorted = supers;
      std::sort(sorted.begin(), sorted.end(), std::greater<double>());
      const double last = sorted[kMaxScoredSuperBlocks - 1];
      const float* scores = &gpu.scores[head * problem.params().num_q_tiles() *
                                        problem.params().num_blocks()];
      for (int64_t i = 0; i < num_supers; ++i) {
        const bool is_scored = !std::isnan(scores[i * kBlocksPerSuperBlock]);
        if (is_scored) {
          ASSERT_GE(supers[i], last - 2 * problem.Tolerance()) << i;
        } else {
          ASSERT_LE(supers[i], last + 2 * problem.Tolerance()) << i;
        }
      }
    }
  }
}

TEST(BlockScoresGpuTest, EqualInputsGiveEqualBits) {
  const BlockProblem problem(
      {.head_dim = 128, .q_begin = 150000, .q_len = 1000});
  const Result first = RunGpu(problem, kRules),
               second = RunGpu(problem, kRules);
  EXPECT_EQ(first.sets.bits, second.sets.bits);
}

TEST(BlockScoresGpuTest, NamesWhatItCannotDo) {
  const BlockProblem problem({.head_dim = 64, .q_len = 300});
  const auto expect = [&](absl::StatusCode code, const char* message,
                          auto change) {
    BlockScoreParams params = problem.params();
    change(params);
    const std::vector<BlockRule> rules(params.num_q_heads);
    EXPECT_THAT(LaunchBlockScores(params, rules, nullptr, nullptr, nullptr),
                StatusIs(code, HasSubstr(message)));
  };
  using P = BlockScoreParams;
  using Code = absl::StatusCode;
  expect(Code::kInvalidArgument, "q_len is 0", [](P& p) { p.q_len = 0; });
  expect(Code::kInvalidArgument, "a stride is 68",
         [](P& p) { p.stride_mean_row = 68; });
  expect(Code::kUnimplemented, "got f32", [](P& p) { p.dtype = DType::kF32; });
  expect(Code::kUnimplemented, "head_dim is 80", [](P& p) { p.head_dim = 80; });
  expect(Code::kUnimplemented, "num_q_heads is 130",
         [](P& p) { p.num_q_heads = 130; });
  expect(Code::kUnimplemented, "q_begin + q_len is",
         [](P& p) { p.q_begin = int64_t{1} << 24; });
}

}  // namespace
}  // namespace overture::kernels
