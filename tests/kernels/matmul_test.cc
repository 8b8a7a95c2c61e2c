#include "kernels/onednn/matmul.h"

#include <omp.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/onednn/onednn.h"

namespace overture::kernels::onednn {
namespace {

std::vector<float> Normal(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(MatMul, MultipliesPlainAndTransposedAndAccumulates) {
  const SingleThreaded single;
  constexpr int64_t kM = 16, kN = 64, kK = 48;
  const std::vector<float> a = Normal(kM * kK, 1);
  const std::vector<float> b = Normal(kK * kN, 2);
  for (bool transpose : {false, true}) {
    for (bool accumulate : {false, true}) {
      std::vector<float> c(kM * kN, 100.0f);
      MatMul::ForThread({.dtype = DType::kF32,
                         .m = kM,
                         .n = kN,
                         .k = kK,
                         .transpose_b = transpose,
                         .accumulate = accumulate})
          .Run(a.data(), b.data(), c.data());
      for (int64_t i = 0; i < kM; ++i) {
        for (int64_t j = 0; j < kN; ++j) {
          double sum = accumulate ? 100.0 : 0.0;
          double magnitude = sum;
          for (int64_t k = 0; k < kK; ++k) {
            const double term =
                double{a[i * kK + k]} * b[transpose ? j * kK + k : k * kN + j];
            sum += term;
            magnitude += std::abs(term);
          }
          // One rounding per product and per addition.
          ASSERT_NEAR(c[i * kN + j], sum, 2 * (kK + 1) * 0x1p-24 * magnitude)
              << i << " " << j << " " << transpose << accumulate;
        }
      }
    }
  }
}

// Scalar code is a hundred times slower and nothing else would show it: gaps
// between rows once brought it in unnoticed.
TEST(MatMul, NeverFallsToScalarCodeForOurShapes) {
  const SingleThreaded single;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    if (dtype == DType::kBF16 && !CpuHasBf16()) continue;
    for (int64_t m : {16, 64, 192}) {
      for (int64_t dim : {64, 96, 128}) {
        for (int64_t width : {64, 128, 256, 512}) {
          const MatMul scores({.dtype = dtype,
                               .m = m,
                               .n = width,
                               .k = dim,
                               .transpose_b = true});
          const MatMul outputs({.dtype = dtype,
                                .m = m,
                                .n = dim,
                                .k = width,
                                .accumulate = true});
          EXPECT_THAT(scores.name(),
                      ::testing::Not(::testing::StartsWith("ref")));
          EXPECT_THAT(outputs.name(),
                      ::testing::Not(::testing::StartsWith("ref")));
        }
      }
    }
    for (int64_t m : {1, 4, 16, 64}) {
      for (bool bias : {false, true}) {
        const MatMul linear({.dtype = dtype,
                             .m = m,
                             .n = 192,
                             .k = 576,
                             .packed_b = true,
                             .has_bias = bias});
        EXPECT_THAT(linear.name(),
                    ::testing::Not(::testing::StartsWith("ref")));
      }
    }
  }
}

TEST(SingleThreaded, EndsWithItsScope) {
  const int before = omp_get_max_threads();
  {
    const SingleThreaded single;
    EXPECT_EQ(MaxThreads(), 1);
  }
  EXPECT_EQ(omp_get_max_threads(), before);
}

TEST(Guard, TurnsOneDnnErrorsIntoStatus) {
  const absl::Status status = Guard("a test", []() -> absl::Status {
    throw dnnl::error(dnnl_out_of_memory, "no room");
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("no room"));
  EXPECT_TRUE(Guard("a test", [] { return absl::OkStatus(); }).ok());
}

}  // namespace
}  // namespace overture::kernels::onednn
