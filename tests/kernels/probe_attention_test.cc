#include "kernels/probe_attention/probe_attention.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/probe_attention/probe_attention_cpu.h"
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
  float q_size = 1;
  float scale_sign = 1;
  int64_t gap = 0;  // elements after every row of q and k
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.num_q_heads << "/" << c.num_kv_heads << " heads, dim " << c.head_dim
       << ", rows " << c.num_rows << ", keys " << c.kv_len << ", window "
       << c.window_rows << ", |q| " << c.q_size << ", gap " << c.gap;
}

std::vector<BFloat16> Random(int64_t count, float size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<BFloat16> values(count);
  for (BFloat16& value : values) value = BFloat16(normal(random));
  return values;
}

// Largest norm of the vectors of `dim` elements, every `stride` elements.
double MaxNorm(const std::vector<BFloat16>& values, int64_t dim,
               int64_t stride) {
  double max = 0;
  for (size_t begin = 0; begin + dim <= values.size(); begin += stride) {
    double sum = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const double x = static_cast<float>(values[begin + i]);
      sum += x * x;
    }
    max = std::max(max, sum);
  }
  return std::sqrt(max);
}

struct Sums {
  std::vector<float> columns;
  std::vector<float> diagonals;
  std::vector<float> votes;

  Sums(int32_t num_q_heads, int32_t num_kv_heads, int64_t kv_len)
      : columns(num_q_heads * kv_len, NAN),
        diagonals(num_q_heads * kv_len, NAN),
        votes(num_kv_heads * kv_len, NAN) {}
};

// `params` has q and k on the device; outputs and scratch start as NaNs.
void RunGpu(ProbeKernel kernel, ProbeAttentionParams params,
            const Stream& stream, Sums* sums) {
  auto columns = ToDevice(sums->columns, stream);
  auto diagonals = ToDevice(sums->diagonals, stream);
  auto votes = ToDevice(sums->votes, stream);
  const int64_t bytes = ProbeScratchBytes(params.kv_len, params.num_q_heads);
  auto scratch = ToDevice(std::vector<float>(bytes / 4, NAN), stream);
  params.column_sums = columns.data();
  params.diagonal_sums = diagonals.data();
  params.window_votes = votes.data();
  OVERTURE_ASSERT_OK(LaunchProbeAttentionWith(kernel, params, scratch.data(),
                                              bytes, stream.get()));
  sums->columns = ToHost(columns, stream);
  sums->diagonals = ToHost(diagonals, stream);
  sums->votes = ToHost(votes, stream);
}

class Problem {
 public:
  explicit Problem(const Case& c) : case_(c) {
    const int64_t dim = c.head_dim;
    const int64_t cache_rows = c.kv_len + 5;  // the cache holds more
    params_ = {.stride_q_row = c.num_q_heads * dim + c.gap,
               .stride_q_head = dim,
               .stride_k_row = dim + c.gap,
               .stride_k_head = cache_rows * (dim + c.gap),
               .num_q_heads = c.num_q_heads,
               .num_kv_heads = c.num_kv_heads,
               .head_dim = c.head_dim,
               .num_rows = c.num_rows,
               .kv_len = c.kv_len,
               .scale = c.scale_sign / std::sqrt(float{1} * c.head_dim),
               .window_rows = c.window_rows};
    q_ = Random(c.num_rows * params_.stride_q_row, c.q_size, 1);
    k_ = Random(c.num_kv_heads * params_.stride_k_head, 1, 2);
  }

  Sums Poison() const {
    return Sums(case_.num_q_heads, case_.num_kv_heads, case_.kv_len);
  }

  Sums Cpu() const {
    Sums sums = Poison();
    ProbeAttentionParams params = params_;
    params.q = q_.data();
    params.k = k_.data();
    params.column_sums = sums.columns.data();
    params.diagonal_sums = sums.diagonals.data();
    params.window_votes = sums.votes.data();
    OVERTURE_EXPECT_OK(ProbeAttentionCpu(params));
    return sums;
  }

  Sums Gpu(ProbeKernel kernel) const {
    Sums sums = Poison();
    auto stream = Stream::Create();
    EXPECT_TRUE(stream.ok()) << stream.status();
    if (!stream.ok()) return sums;
    const auto q = ToDevice(q_, *stream);
    const auto k = ToDevice(k_, *stream);
    ProbeAttentionParams params = params_;
    params.q = q.data();
    params.k = k.data();
    RunGpu(kernel, params, *stream, &sums);
    return sums;
  }

  // Of a probability, between the two. A score is off by a rounding for each of
  // its dim products and sums of them, and two of the scale, of at most |q| |k|
  // scale; tensor cores cut where the CPU rounds. Twice, for the score and the
  // sum it is divided by. The sum of kv_len terms adds a rounding per term of
  // a partial sum (16 on the CPU, more on the GPU), log2 of it one of itself,
  // at most the largest score and log2(kv_len); exponentials 2^-20 together.
  // Outputs are sums of such terms.
  double Tolerance() const {
    const double dim = case_.head_dim;
    const double mass = MaxNorm(q_, case_.head_dim, params_.stride_q_head) *
                        MaxNorm(k_, case_.head_dim, params_.stride_k_row) /
                        std::sqrt(dim);
    constexpr double kCut = 0x1p-23, kRound = 0x1p-24;
    return 2 * (dim + 4) * (kCut + kRound) * mass +
           (case_.kv_len / 16.0 + 64) * 2 * kRound + (mass + 30) * kRound +
           0x1p-20;
  }

 private:
  Case case_;
  ProbeAttentionParams params_;
  std::vector<BFloat16> q_, k_;
};

void ExpectClose(const std::vector<float>& got, const std::vector<float>& want,
                 double tolerance, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * want[i] + 1e-30)
        << what << " " << i;
  }
}

// Every kernel that the device has.
class ProbeAttentionTest : public ::testing::TestWithParam<ProbeKernel> {
 protected:
  void SetUp() override {
    int major = 0, minor = 0;
    ASSERT_EQ(
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0),
        cudaSuccess);
    ASSERT_EQ(
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0),
        cudaSuccess);
    if (GetParam() == ProbeKernel::kSm90 && (major != 9 || minor != 0)) {
      GTEST_SKIP() << "the device has compute capability " << major << "."
                   << minor;
    }
  }

  void ExpectEqualsTheCpus(const Case& c) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const Problem problem(c);
    const Sums cpu = problem.Cpu(), gpu = problem.Gpu(GetParam());
    const double tolerance = problem.Tolerance();
    ASSERT_NO_FATAL_FAILURE(
        ExpectClose(gpu.columns, cpu.columns, tolerance, "column"));
    ASSERT_NO_FATAL_FAILURE(
        ExpectClose(gpu.diagonals, cpu.diagonals, tolerance, "distance"));
    ASSERT_NO_FATAL_FAILURE(
        ExpectClose(gpu.votes, cpu.votes, tolerance, "vote"));
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, ProbeAttentionTest,
                         ::testing::Values(ProbeKernel::kSm80,
                                           ProbeKernel::kSm90),
                         [](const auto& info) {
                           return info.param == ProbeKernel::kSm80 ? "Sm80"
                                                                   : "Sm90";
                         });

TEST_P(ProbeAttentionTest, AnyLength) {
  for (const int64_t kv_len :
       {64, 65, 127, 128, 129, 1000, 4096, 8191, 20000}) {
    ASSERT_NO_FATAL_FAILURE(ExpectEqualsTheCpus({.kv_len = kv_len}));
  }
}

TEST_P(ProbeAttentionTest, AnyHeadDimThatIsAMultipleOfSixteen) {
  for (int32_t dim = 16; dim <= 128; dim += 16) {
    ASSERT_NO_FATAL_FAILURE(
        ExpectEqualsTheCpus({.head_dim = dim, .kv_len = 777}));
  }
}

TEST_P(ProbeAttentionTest, AnyGroup) {
  // More than 8 heads of a group, or 4, take several launches.
  for (const int32_t group : {1, 2, 3, 4, 5, 7, 8, 9, 16, 20}) {
    ASSERT_NO_FATAL_FAILURE(ExpectEqualsTheCpus(
        {.num_q_heads = group, .num_kv_heads = 1, .kv_len = 1300}));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsTheCpus(
      {.num_q_heads = 32, .num_kv_heads = 8, .head_dim = 128, .kv_len = 3000}));
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsTheCpus(
      {.num_q_heads = 300, .num_kv_heads = 150, .kv_len = 200}));
}

TEST_P(ProbeAttentionTest, AnyNumberOfRowsAndAnyWindow) {
  const Case cases[] = {
      {.num_rows = 1, .kv_len = 1, .window_rows = 1},
      {.num_rows = 1, .kv_len = 500, .window_rows = 1},
      {.num_rows = 2, .kv_len = 2, .window_rows = 1},
      {.num_rows = 37, .kv_len = 37, .window_rows = 37},
      {.num_rows = 37, .kv_len = 300, .window_rows = 5},
      {.num_rows = 63, .kv_len = 129, .window_rows = 33},
      // More than one block of rows; the window crosses its border, or not.
      {.num_rows = 65, .kv_len = 700, .window_rows = 65},
      {.num_rows = 128, .kv_len = 640, .window_rows = 64},
      {.num_rows = 150, .kv_len = 700, .window_rows = 100},
      {.num_rows = 150, .kv_len = 150, .window_rows = 150},
      {.num_rows = 300, .kv_len = 1111, .window_rows = 7},
      {.num_q_heads = 10,
       .num_kv_heads = 1,
       .num_rows = 150,
       .window_rows = 100}};
  for (const Case& c : cases) {
    ASSERT_NO_FATAL_FAILURE(ExpectEqualsTheCpus(c));
  }
}

TEST_P(ProbeAttentionTest, RowsMayHaveGaps) {
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsTheCpus({.head_dim = 80, .gap = 24}));
}

TEST_P(ProbeAttentionTest, LargeScoresAreRelativeToTheirMaximum) {
  // Scores of several hundred: most probabilities are 0, one is nearly 1.
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsTheCpus({.kv_len = 5000, .q_size = 60}));
  ASSERT_NO_FATAL_FAILURE(
      ExpectEqualsTheCpus({.kv_len = 700, .q_size = 60, .scale_sign = -1}));
}

TEST_P(ProbeAttentionTest, AScaleOfZeroIsUniform) {
  ASSERT_NO_FATAL_FAILURE(ExpectEqualsTheCpus({.scale_sign = 0}));
}

TEST_P(ProbeAttentionTest, EqualInputsGiveEqualBits) {
  const Problem problem({.num_q_heads = 8,
                         .num_kv_heads = 2,
                         .head_dim = 128,
                         .num_rows = 150,
                         .kv_len = 30000,
                         .window_rows = 100});
  const Sums first = problem.Gpu(GetParam()), second = problem.Gpu(GetParam());
  EXPECT_EQ(first.columns, second.columns);
  EXPECT_EQ(first.diagonals, second.diagonals);
  EXPECT_EQ(first.votes, second.votes);
}

TEST_P(ProbeAttentionTest, OutputsMayBeLeftOut) {
  const Problem problem({.kv_len = 3000});
  const Sums all = problem.Gpu(GetParam());
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Stream stream, Stream::Create());
  const auto q = ToDevice(Random(64 * 4 * 64, 1, 1), stream);
  const auto k = ToDevice(Random(2 * 3005 * 64, 1, 2), stream);
  auto scratch =
      ToDevice(std::vector<float>(ProbeScratchBytes(3000, 4) / 4), stream);
  const auto run = [&](float* columns, float* diagonals, float* votes) {
    OVERTURE_ASSERT_OK(LaunchProbeAttentionWith(
        GetParam(),
        {.q = q.data(),
         .k = k.data(),
         .stride_q_row = 4 * 64,
         .stride_q_head = 64,
         .stride_k_row = 64,
         .stride_k_head = 3005 * 64,
         .num_q_heads = 4,
         .num_kv_heads = 2,
         .head_dim = 64,
         .num_rows = 64,
         .kv_len = 3000,
         .scale = 0.125f,
         .column_sums = columns,
         .diagonal_sums = diagonals,
         .window_votes = votes,
         .window_rows = 32},
        scratch.data(), ProbeScratchBytes(3000, 4), stream.get()));
  };
  auto out = ToDevice(std::vector<float>(4 * 3000), stream);
  run(out.data(), nullptr, nullptr);
  EXPECT_EQ(ToHost(out, stream), all.columns);
  run(nullptr, out.data(), nullptr);
  EXPECT_EQ(ToHost(out, stream), all.diagonals);
  auto votes = ToDevice(std::vector<float>(2 * 3000), stream);
  run(nullptr, nullptr, votes.data());
  EXPECT_EQ(ToHost(votes, stream), all.votes);
}

TEST_P(ProbeAttentionTest, AMillionEqualKeysGiveTheHarmonicSums) {
  // Row r gives 1 / (r + 1) to each of its keys: a key counted twice or not at
  // all at the border of two runs would show as an error of 1 / 64.
  constexpr int64_t kKeys = (int64_t{1} << 20) + 77;
  constexpr int32_t kRows = 64, kWindow = 32;
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Stream stream, Stream::Create());
  const auto q = ToDevice(Random(kRows * 2 * 16, 1, 1), stream);
  const auto k = ToDevice(std::vector<BFloat16>(kKeys * 16), stream);
  Sums sums(2, 1, kKeys);
  RunGpu(GetParam(),
         {.q = q.data(),
          .k = k.data(),
          .stride_q_row = 32,
          .stride_q_head = 16,
          .stride_k_row = 16,
          .num_q_heads = 2,
          .num_kv_heads = 1,
          .head_dim = 16,
          .num_rows = kRows,
          .kv_len = kKeys,
          .scale = 1,
          .window_rows = kWindow},
         stream, &sums);
  // The sums of exponentials are exact: whole numbers below 2^24. Their log2,
  // near 20, is off by 2^-20, exponentials by 2^-22, sums by 64 roundings.
  constexpr double kTolerance = 0x1p-20 + 0x1p-22 + 64 * 0x1p-24;
  // Sum of 1 / (row + 1) over the rows [first, last) of the 64.
  const auto harmonic = [&](int64_t first, int64_t last) {
    double sum = 0;
    for (int64_t row = first; row < last; ++row) {
      sum += 1.0 / static_cast<double>(kKeys - kRows + row + 1);
    }
    return sum;
  };
  for (int64_t i = 0; i < kKeys; ++i) {
    // Rows before column i, or too early for distance i, do not see it.
    const int64_t hidden = std::max<int64_t>(0, i - (kKeys - kRows));
    const double seen = harmonic(hidden, kRows);
    const double voted =
        harmonic(std::max<int64_t>(hidden, kRows - kWindow), kRows);
    for (const int64_t head : {0, 1}) {
      ASSERT_NEAR(sums.columns[head * kKeys + i], seen, seen * kTolerance) << i;
      ASSERT_NEAR(sums.diagonals[head * kKeys + i], seen, seen * kTolerance)
          << i;
    }
    ASSERT_NEAR(sums.votes[i], voted, voted * kTolerance) << i;
  }
}

TEST(ProbeAttentionErrorsTest, NamesWhatItCannotDo) {
  alignas(16) const uint16_t data[64] = {};
  const ProbeAttentionParams fine = {.q = data,
                                     .k = data,
                                     .stride_q_row = 64,
                                     .stride_q_head = 64,
                                     .stride_k_row = 64,
                                     .stride_k_head = 64,
                                     .num_q_heads = 1,
                                     .num_kv_heads = 1,
                                     .head_dim = 64,
                                     .num_rows = 1,
                                     .kv_len = 1};
  const auto expect = [&](auto change, absl::StatusCode code,
                          const char* message) {
    ProbeAttentionParams params = fine;
    change(params);
    EXPECT_THAT(LaunchProbeAttention(params, nullptr, 100, nullptr),
                StatusIs(code, HasSubstr(message)));
  };
  using P = ProbeAttentionParams;
  using Code = absl::StatusCode;
  expect([](P&) {}, Code::kResourceExhausted, "scratch of 100 bytes");
  expect([](P& p) { p.head_dim = 136; }, Code::kUnimplemented, "got 136");
  expect([](P& p) { p.head_dim = 24; }, Code::kUnimplemented, "got 24");
  expect([](P& p) { p.dtype = DType::kF32; }, Code::kUnimplemented, "got f32");
  expect([](P& p) { p.num_rows = 2; }, Code::kInvalidArgument, "num_rows is 2");
  expect([](P& p) { p.kv_len = (int64_t{1} << 30) + 1; },
         Code::kInvalidArgument, "kv_len is 1073741825");
  expect([](P& p) { p.stride_k_row = 68; }, Code::kInvalidArgument,
         "a stride is 68");
  expect([&](P& p) { p.k = data + 1; }, Code::kInvalidArgument,
         "modulo 16 is 2");
}

}  // namespace
}  // namespace overture::kernels
