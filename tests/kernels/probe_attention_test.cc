#include "kernels/probe_attention/probe_attention.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/device_copy.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::overture::testing::ToDevice;
using ::overture::testing::ToHost;
using ::testing::HasSubstr;

struct Case {
  int32_t num_q_heads = 4;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 64;
  int32_t num_rows = 64;
  int64_t kv_len = 1000;
  int32_t window_rows = 32;
  int32_t scratch_heads = 4;
};

std::vector<BFloat16> Random(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<BFloat16> values(count);
  for (BFloat16& value : values) value = BFloat16(normal(random));
  return values;
}

struct Sums {
  std::vector<float> columns;
  std::vector<float> diagonals;
  std::vector<float> votes;
};

void RunBoth(const Case& c, Sums* cpu, Sums* gpu) {
  const int64_t dim = c.head_dim;
  const int64_t cache_rows = c.kv_len + 5;  // the cache holds more
  ProbeAttentionParams params{.stride_q_row = c.num_q_heads * dim,
                              .stride_q_head = dim,
                              .stride_k_row = dim,
                              .stride_k_head = cache_rows * dim,
                              .num_q_heads = c.num_q_heads,
                              .num_kv_heads = c.num_kv_heads,
                              .head_dim = c.head_dim,
                              .num_rows = c.num_rows,
                              .kv_len = c.kv_len,
                              .scale = 1 / std::sqrt(float{1} * c.head_dim),
                              .window_rows = c.window_rows};
  const std::vector<BFloat16> q = Random(c.num_rows * params.stride_q_row, 1);
  const std::vector<BFloat16> k =
      Random(c.num_kv_heads * params.stride_k_head, 2);
  const Sums poison = {
      .columns = std::vector<float>(c.num_q_heads * c.kv_len, NAN),
      .diagonals = std::vector<float>(c.num_q_heads * c.kv_len, NAN),
      .votes = std::vector<float>(c.num_kv_heads * c.kv_len, NAN)};
  *cpu = poison;
  params.q = q.data();
  params.k = k.data();
  params.column_sums = cpu->columns.data();
  params.diagonal_sums = cpu->diagonals.data();
  params.window_votes = cpu->votes.data();
  OVERTURE_ASSERT_OK(ProbeAttentionCpu(params));

  OVERTURE_ASSERT_OK_AND_ASSIGN(const Stream stream, Stream::Create());
  const auto device_q = ToDevice(q, stream);
  const auto device_k = ToDevice(k, stream);
  auto columns = ToDevice(poison.columns, stream);
  auto diagonals = ToDevice(poison.diagonals, stream);
  auto votes = ToDevice(poison.votes, stream);
  const int64_t bytes = ProbeScratchBytes(c.kv_len, c.scratch_heads);
  auto scratch = ToDevice(std::vector<float>(bytes / 4, NAN), stream);
  params.q = device_q.data();
  params.k = device_k.data();
  params.column_sums = columns.data();
  params.diagonal_sums = diagonals.data();
  params.window_votes = votes.data();
  OVERTURE_ASSERT_OK(
      LaunchProbeAttention(params, scratch.data(), bytes, stream.get()));
  gpu->columns = ToHost(columns, stream);
  gpu->diagonals = ToHost(diagonals, stream);
  gpu->votes = ToHost(votes, stream);
}

// A probability is exp(s - max) / sum. Scores here stay below 8: an fp32 dot
// product of up to 128 exact terms is off by 128 * 2^-24 * 8 * sqrt(128) / 8 or
// less, under 1e-4; __expf adds 2^-21 of |s - max| <= 16. So each term is
// within 3e-4 of itself on both sides together, and a sum of such terms too.
void ExpectClose(const std::vector<float>& got, const std::vector<float>& want,
                 const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], 3e-4 * want[i] + 1e-12) << what << " " << i;
  }
}

TEST(ProbeAttentionTest, EqualsTheCpus) {
  const Case cases[] = {
      {},
      {.num_q_heads = 9, .num_kv_heads = 3, .kv_len = 4096},
      {.head_dim = 96, .kv_len = 65},
      {.head_dim = 128, .kv_len = 2049},
      // Fewer rows than a block, rows that are no multiple of 16.
      {.num_rows = 1, .kv_len = 1, .window_rows = 1},
      {.num_rows = 37, .kv_len = 300, .window_rows = 5},
      // More than one block; the window crosses its border.
      {.num_rows = 150, .kv_len = 700, .window_rows = 100},
      {.num_rows = 150, .kv_len = 150, .window_rows = 150},
      // Batches of heads that split a group.
      {.num_q_heads = 6, .num_kv_heads = 2, .scratch_heads = 1},
      {.num_q_heads = 6, .num_kv_heads = 2, .scratch_heads = 4},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message()
                 << c.num_q_heads << " heads, dim " << c.head_dim << ", rows "
                 << c.num_rows << ", keys " << c.kv_len);
    Sums cpu, gpu;
    RunBoth(c, &cpu, &gpu);
    ExpectClose(gpu.columns, cpu.columns, "column");
    ExpectClose(gpu.diagonals, cpu.diagonals, "distance");
    ExpectClose(gpu.votes, cpu.votes, "vote");
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(ProbeAttentionTest, EqualInputsGiveEqualBits) {
  const Case c = {.kv_len = 3000};
  Sums cpu, first, second;
  RunBoth(c, &cpu, &first);
  RunBoth(c, &cpu, &second);
  EXPECT_EQ(first.columns, second.columns);
  EXPECT_EQ(first.diagonals, second.diagonals);
  EXPECT_EQ(first.votes, second.votes);
}

TEST(ProbeAttentionTest, NamesWhatItCannotDo) {
  ProbeAttentionParams params{.stride_q_row = 64,
                              .stride_q_head = 64,
                              .stride_k_row = 64,
                              .stride_k_head = 64,
                              .num_q_heads = 1,
                              .num_kv_heads = 1,
                              .head_dim = 64,
                              .num_rows = 1,
                              .kv_len = 1};
  EXPECT_THAT(LaunchProbeAttention(params, nullptr, 100, nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("scratch of 100 bytes")));
  params.head_dim = 136;
  EXPECT_THAT(LaunchProbeAttention(params, nullptr, 0, nullptr),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("got 136")));
  params.head_dim = 64;
  params.dtype = DType::kF32;
  EXPECT_THAT(LaunchProbeAttention(params, nullptr, 0, nullptr),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("got f32")));
  params.dtype = DType::kBF16;
  params.num_rows = 2;
  EXPECT_THAT(
      LaunchProbeAttention(params, nullptr, 0, nullptr),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("num_rows is 2")));
}

}  // namespace
}  // namespace overture::kernels
